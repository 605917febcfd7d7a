"""The short form under compute-sanitizer: memcheck, racecheck and synccheck at once; a summary of what they found.

``python tests/gpu/sanitizer.py [--seconds S] [--log FILE] [TOOL ...]``; the exit code is 1 if one found something, 2 if one did
not come to its end, and 0 if all were clean, or there is no compute-sanitizer.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "synccheck")
FOUND = 42
"""The exit code of a program in which the tool found something."""
PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/compute-sanitizer")

ENVIRONMENT = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",  # each buffer an allocation of its own: what is out of bounds is seen
    "XLA_FLAGS": "--xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=0",
    "JAX_PLATFORMS": "cuda,cpu",
    "JAXPRIMS_REQUIRE_GPU": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a tool said: ``errors`` (hazards; None: it said nothing), the calls that were right of all that were to be, and the
    first reports."""

    tool: str
    errors: int | None
    right: int
    calls: int
    reports: tuple[str, ...] = ()
    note: str = ""

    @property
    def clean(self) -> bool:
        return self.errors == 0 and self.right == self.calls > 0

    def __str__(self) -> str:
        errors = "no summary" if self.errors is None else f"{self.errors} errors"
        return f"{self.tool}: {errors}, {self.right} of {self.calls} calls right" + (f" ({self.note})" if self.note else "")


def parse(tool: str, text: str, note: str = "") -> Finding:
    """Reads a tool's output with the program's own lines between."""
    sums = re.findall(r"^=+ (?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", text, re.MULTILINE)
    errors = sum(int(a or b) for a, b in sums) if sums else None
    calls = int(found.group(1)) if (found := re.search(r"^(\d+) calls on", text, re.MULTILINE)) else 0
    right = len(re.findall(r"^ *[\d.]+ s  .*: ok$", text, re.MULTILINE))
    # A report starts behind a rule and ends at the next empty one; the first line of each says what it is.
    body = re.split(r"^=+ *$", text, flags=re.MULTILINE)
    reports = [
        b.strip()
        for b in body
        if re.search(r"^=+ (Invalid|Error|Race|Warning|Barrier|Potential|Program hit|Address)", b, re.MULTILINE)
    ]
    return Finding(tool, errors, right, calls, tuple(reports[:5]), note)


def tool_path() -> str | None:
    places = [p for folder in PLACES if os.access(p := f"{folder}/compute-sanitizer", os.X_OK)]
    return shutil.which("compute-sanitizer") or (places[0] if places else None)


def run(tools: list[str], seconds: float, pattern: str = "") -> list[tuple[Finding, str]]:
    """All tools at once, each in a process of its own; (what it found, its whole output)."""
    program = tool_path()
    if program is None:
        return []
    started = []
    for tool in tools:
        output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        options = ["--tool", tool, "--error-exitcode", str(FOUND), "--target-processes", "application-only"]
        options += ["--report-api-errors", "no"] if tool == "memcheck" else []
        script = [sys.executable, str(Path(__file__).with_name("short_form.py")), *([pattern] if pattern else [])]
        env = {**os.environ, **ENVIRONMENT}
        command = [program, *options, *script]
        started.append((tool, output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env)))
    out, end = [], time.monotonic() + seconds
    for tool, output, process in started:
        try:
            code = process.wait(max(1.0, end - time.monotonic()))
            note = "" if code in (0, FOUND) else f"exit code {code}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            note = f"stopped after {seconds:.0f} s"
        output.seek(0)
        text = output.read()
        out.append((parse(tool, text, note), text))
    return out


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("tools", nargs="*", default=list(TOOLS))
    p.add_argument("--seconds", type=float, default=100.0)
    p.add_argument("--only", default="", help="calls of the short form whose name matches")
    p.add_argument("--log", type=Path)
    args = p.parse_args()
    found = run(args.tools, args.seconds, args.only)
    if not found:
        print("compute-sanitizer: not on this machine")
        return 0
    if args.log:
        args.log.write_text("\n".join(f"### {f.tool}\n{text}" for f, text in found))
    for finding, _ in found:
        print(finding)
        for report in finding.reports:
            print("\n".join("    " + line for line in report.splitlines()[:12]))
    if any(f.errors for f, _ in found):
        return 1
    return 0 if all(f.clean for f, _ in found) else 2


if __name__ == "__main__":
    sys.exit(main())
