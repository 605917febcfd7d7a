"""The reference from what ``help`` shows: for mkdocstrings, by way of Griffe."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from typing import Any

import griffe


def as_markdown(doc: str) -> str:
    """Sessions become blocks of code, roles become links, tables become Markdown's."""
    doc = re.sub(r"^(={3,} .*)\n(?:.*\n)*?\1\n((?:.*\n)*?)\1$", lambda t: _table(t[1], t[0], t[2]), doc, flags=re.MULTILINE)
    doc = re.sub(r"^>>> (?:.+\n?)+", lambda session: f"```pycon\n{session[0].rstrip()}\n```\n", doc, flags=re.MULTILINE)
    doc = re.sub(r":\w+:`((?:jax|numpy)\.[\w.]+)`", r"`\1`", doc)
    doc = re.sub(r":\w+:`([\w.]+)`", r"[`\1`][jaxprims.\1]", doc)
    doc = re.sub(r"^(Returns):\n((?:  .*\n?)+)", lambda s: f"**{s[1]}:**\n{textwrap.dedent(s[2])}", doc, flags=re.MULTILINE)
    return re.sub(r"^(Cost|Source):", r"**\1:**", doc, flags=re.MULTILINE)


def _table(ruler: str, whole: str, body: str) -> str:
    """Columns are as wide as the ruler says; a row that has nothing in the first one goes on with the row above."""
    spans = [column.span() for column in re.finditer("=+", ruler)]
    rows: list[list[str]] = []
    for line in [whole.splitlines()[1], *body.splitlines()]:
        cells = [line[a : b if b < spans[-1][1] else None].strip() for a, b in spans]
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [" ".join(part).strip() for part in zip(rows[-1], cells, strict=True)]
    rows.insert(1, ["---"] * len(spans))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _default(parameter: inspect.Parameter) -> str | None:
    value = parameter.default
    if value is inspect.Parameter.empty:
        return None
    return getattr(value, "__name__", None) if callable(value) else repr(value)


class Docstrings(griffe.Extension):
    """Public functions are what they are when imported: many are made by functions. Classes are read from their files."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        module = importlib.import_module(pkg.path)
        kinds = griffe.ParameterKind
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value) or not (inspect.isclass(value) or isinstance(value, tuple)):
                pkg.set_member(name, made := griffe.Function(name) if callable(value) else griffe.Attribute(name))
                made.docstring = griffe.Docstring(as_markdown(inspect.getdoc(value) or ""), parent=made)
            if inspect.isfunction(value):
                made.parameters = griffe.Parameters(
                    *(
                        griffe.Parameter(p.name, kind=kinds(p.kind.description), default=_default(p))
                        for p in inspect.signature(value).parameters.values()
                    )
                )

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
        if obj.parent and obj.parent.path == "jaxprims.arguments.monoids.monoids":
            monoid = getattr(importlib.import_module("jaxprims").monoids, obj.name)
            obj.docstring = griffe.Docstring(as_markdown(inspect.cleandoc(monoid.__doc__)), parent=obj)
