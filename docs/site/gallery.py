"""``make gallery``: runs the examples and keeps what they print and draw in docs/gallery. Five minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
WIDTH = 1000  # pixels


def main() -> None:
    for example in sorted((ROOT / "examples").glob("*.py")):
        ran = subprocess.run([sys.executable, example], check=True, stdout=subprocess.PIPE, text=True)
        lines = [line for line in ran.stdout.splitlines() if str(ROOT) not in line]  # where the picture was written
        (ROOT / "docs" / "gallery" / f"{example.stem}.txt").write_text("\n".join(lines).strip() + "\n")
        picture = ROOT / "examples" / "out" / f"{example.stem}.png"
        if picture.exists():
            image = Image.open(picture).convert("RGB")
            image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
            image.quantize(256).save(ROOT / "docs" / "gallery" / picture.name, optimize=True)
        print(example.stem, *lines, sep="\n  ")


if __name__ == "__main__":
    main()
