"""The architecture, as imports show it: layers that import downwards only, no circles, targets that do not know each other."""

from __future__ import annotations

import ast
import importlib.util
import pathlib
from collections.abc import Iterator

import pytest

import jaxprims

ROOT = pathlib.Path(jaxprims.__file__).parent

LAYERS = tuple("dropins inspection fusion api calls arguments primitives targets specs operators tracing ir".split())
"""From the top; docs/design.md says what each is for."""


def modules() -> dict[str, ast.Module]:
    """By name behind ``jaxprims.``; packages by their own."""
    out = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return out


MODULES = modules()


def imported(name: str) -> Iterator[str]:
    """The modules of the package that one imports, anywhere in its text."""
    is_package = (ROOT / name.replace(".", "/")).is_dir()
    package = ".".join(["jaxprims", *([name] if name else [])]) if is_package else f"jaxprims.{name}".rpartition(".")[0]
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("jaxprims") for alias in node.names), f"{name}: imports are relative"
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = importlib.util.resolve_name("." * node.level + (node.module or ""), package).removeprefix("jaxprims").lstrip(".")
        for alias in node.names:
            below = f"{base}.{alias.name}".lstrip(".")
            found = below if below in MODULES else base
            if found and found in MODULES:  # else an extension module, or the package itself
                yield found


EDGES = {name: sorted(set(imported(name))) for name in MODULES}


def test_every_module_is_in_a_layer() -> None:
    rooms = {name.partition(".")[0] for name in MODULES}
    assert rooms - {"", "_version"} == set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_what_is_below_it(layer: str) -> None:
    above = LAYERS[: LAYERS.index(layer)]
    wrong = [
        f"{name} imports {other}"
        for name, others in EDGES.items()
        for other in others
        if name.partition(".")[0] == layer and other.partition(".")[0] in above
    ]
    assert not wrong


def test_no_circle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in EDGES[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


@pytest.mark.parametrize(("target", "other"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_targets_do_not_know_each_other(target: str, other: str) -> None:
    wrong = [
        f"{name} imports {o}"
        for name, others in EDGES.items()
        for o in others
        if name.startswith(f"targets.{target}") and o.startswith(f"targets.{other}")
    ]
    assert not wrong


def test_only_targets_and_inspection_know_a_target() -> None:
    """Everything else asks the registry. The number of this machine's cores is the host's, whatever the target."""
    known = {"inspection.compile_check", "inspection.explain"}
    wrong = [
        f"{name} imports {other}"
        for name, others in EDGES.items()
        for other in others
        if other.startswith(("targets.cpu", "targets.cuda")) and not name.startswith("targets") and name not in known
    ]
    assert not wrong


def test_no_private_modules_of_jax() -> None:
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not any(n.startswith("jax._src") for n in names), name
