"""What MkDocs is told beside mkdocs.yml: pages that lie elsewhere in the repository, executed notebooks, the gallery."""

from __future__ import annotations

import ast
import json
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "bench/README.md": "benchmarks.md",
    "examples": "gallery.md",
    "LICENSE": "LICENSE.txt",
}
"""Files of the repository, and where the site has them. Any other that a page links to keeps its path."""
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")  # none with a scheme


def on_config(config: Any) -> Any:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.site_description = project["description"]
    urls = project["urls"]
    if "OWNER" not in urls["Repository"]:  # filled in
        config.repo_url, config.repo_name, config.site_url = urls["Repository"], project["name"], urls["Documentation"]
    return config


def place(path: Path) -> str:
    """Where the site has a file of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    inside = path.relative_to(ROOT).as_posix()
    return ELSEWHERE.get(inside, inside)


def linked(text: str, source: Path) -> set[Path]:
    found = {(source.parent / link[1]).resolve() for link in LINK.finditer(text)}
    return {path for path in found if path.is_relative_to(ROOT) and path.exists()}


def on_files(files: Any, config: Any) -> Any:
    pages = [ROOT / path for path in ELSEWHERE if path.endswith(".md")]
    pages += [Path(f.abs_src_path) for f in files.documentation_pages()]
    wanted = {path for page in pages for path in linked(page.read_text(), page)} | set(pages)
    wanted |= set((ROOT / "build" / "notebooks").glob("*.ipynb"))
    for path in sorted(wanted):
        uri = f"notebooks/{path.name}" if path.suffix == ".ipynb" else place(path)
        if path.is_file() and files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    source, here = Path(page.file.abs_src_path), posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        path = (source.parent / link[1]).resolve()
        if not path.is_relative_to(ROOT) or not path.exists():
            return link[0]
        return f"]({posixpath.relpath(place(path), here or '.')}{link[2] or ''})"

    if here == "performance":
        page.meta["hide"] = ["toc"]  # room for wide tables, whose numbers are not torn apart
        markdown = re.sub(r"(\([\d.]+) ([%×]\))", "\\1\N{NO-BREAK SPACE}\\2", markdown)
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]
    if here == "notebooks":
        markdown = notebook(page.file.name)
    markdown = LINK.sub(moved, markdown).replace("```python\n>>>", "```pycon\n>>>")
    return markdown + gallery() if page.file.src_uri == "gallery.md" else markdown


def fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def notebook(name: str) -> str:
    """An executed notebook, as Markdown."""
    parts = []
    for cell in json.loads((ROOT / "build" / "notebooks" / f"{name}.ipynb").read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else fenced(source, "python"))
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", [])})
            if "image/png" in data:
                parts.append(f"![what the cell above draws](data:image/png;base64,{data['image/png'].strip()})")
            elif "text/plain" in data:
                parts.append(fenced("".join(data["text/plain"])))
    title, *rest = parts
    return "\n\n".join([title, f"[This page as a notebook]({name}.ipynb)", *rest])


def gallery() -> str:
    """The examples, those with a picture first: what they are, what they print, their text."""
    sections = []
    drawn = {path.stem for path in (DOCS / "gallery").glob("*.png")}
    for path in sorted((ROOT / "examples").glob("*.py"), key=lambda p: (p.stem not in drawn, p.stem)):
        text = path.read_text()
        what = re.sub(r"\n\nRun it with .*", "", ast.get_docstring(ast.parse(text)) or "", flags=re.DOTALL)
        sections.append(f"## {path.stem.replace('_', ' ').capitalize()}\n\n{what}")
        if path.stem in drawn:
            sections.append(f"![{path.stem.replace('_', ' ')}](gallery/{path.stem}.png)")
        sections.append(fenced((DOCS / "gallery" / f"{path.stem}.txt").read_text()))
        block = fenced(text, "python").replace("\n", "\n    ")
        sections.append(f'??? example "examples/{path.name}"\n    {block}')
    return "\n" + "\n\n".join(sections)
