"""What the README, the documentation and the docstrings show is what happens."""

from __future__ import annotations

import doctest
import importlib.metadata
import inspect
import re
from pathlib import Path

import jax
import pytest

import jaxprims

ROOT = Path(__file__).parent.parent
DOCS = sorted(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md"))
PROSE = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "bench/README.md", *DOCS]
PAGES = [page for page in PROSE if "```python\n" in (ROOT / page).read_text()]
PACKAGE = ROOT / "jaxprims"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = sorted(
    f"jaxprims.{'.'.join(path.relative_to(PACKAGE).with_suffix('').parts)}"
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text()
)
"""Those with examples."""


def run(text: str, **names: object) -> None:
    session = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    test = doctest.DocTestParser().get_doctest(session, names, "page", None, 0)
    assert len(test.examples) >= 5
    assert doctest.DocTestRunner(optionflags=OPTIONS).run(test).failed == 0


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str) -> None:
    """The page's Python blocks are one session. (Notebooks are executed when the site is built.)"""
    run((ROOT / page).read_text())


@pytest.mark.parametrize("page", PROSE)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert [to for to in links if "://" not in to and not (ROOT / page).parent.joinpath(to).exists()] == []


@pytest.mark.parametrize("page", PROSE)
def test_files_that_are_named_are_there(page: str) -> None:
    """A path from the root, from ``jaxprims``, ``bench`` or ``tests``, or the name of a file somewhere in the repository."""
    folders = [ROOT / folder for folder in ("jaxprims", "cpu", "cuda", "ffi", "tests", "bench")]
    names = {path.name for folder in folders for path in folder.rglob("*.*")}
    named = re.findall(r"`([\w/.]+\.(?:py|h|cuh|cc))`", (ROOT / page).read_text())
    roots = [ROOT, ROOT / "jaxprims", ROOT / "bench", ROOT / "tests"]
    there = [any((root / path).exists() for root in roots) if "/" in path else path in names for path in named]
    assert [path for path, found in zip(named, there, strict=True) if not found] == []


def test_the_version_is_said_once() -> None:
    assert importlib.metadata.version("jaxprims") == jaxprims.__version__


def test_several_devices_may_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests see eight devices: so do the pages, but for this."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    run((ROOT / "docs" / "howto" / "devices.md").read_text())


def test_pages_are_found() -> None:
    assert {"README.md", "docs/tour.md", "docs/semantics.md", "docs/fusion.md", "docs/howto/group-by.md"} <= set(PAGES)


def test_every_public_name_is_in_the_reference_once() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    assert sorted(re.findall(r"^::: jaxprims\.(\w+)$", pages, flags=re.MULTILINE)) == sorted(jaxprims.__all__)


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    assert [page for page in DOCS if not re.search(rf"[ :]{re.escape(page.removeprefix('docs/'))}\n", navigation)] == []


def test_every_example_is_in_the_gallery() -> None:
    kept = {path.stem for path in (ROOT / "docs" / "gallery").glob("*.txt")}
    assert kept == {path.stem for path in (ROOT / "examples").glob("*.py")}


def test_the_citation_has_the_version_and_the_references() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {jaxprims.__version__}\n" in citation
    titles = re.findall(r"^\|.*?\*([^*|]+?)\.?\*", (ROOT / "docs" / "references.md").read_text(), flags=re.MULTILINE)
    assert len(titles) >= 11 and [title for title in titles if title not in citation] == []


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=OPTIONS).failed == 0


@pytest.mark.parametrize("name", [n for n in jaxprims.__all__ if inspect.isfunction(getattr(jaxprims, n))])
def test_public_functions_say_what_they_take_give_raise_and_cost(name: str) -> None:
    signature, doc = inspect.signature(getattr(jaxprims, name)), getattr(jaxprims, name).__doc__ or ""
    wanted = [">>>", "^ *(Cost|Raises and cost):"]
    wanted += ["^ *Args:", "^ *Raises"] if signature.parameters else []
    wanted += ["^ *Returns:"] if signature.return_annotation not in (None, "None") else []
    assert [part for part in wanted if not re.search(part, doc, flags=re.MULTILINE)] == []
