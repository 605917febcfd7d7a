"""Programs as text, drawn line by line."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .idioms import EXACT, NAMES, ROUNDED, lines
from .transformations import MODES, OF_INTEGERS

Shape = tuple[int, ...]
KINDS = {"exact": lines(EXACT), "rounded": lines(ROUNDED)}
SMALL: list[Shape] = [(10,), (2, 5), (300,), (1, 40), (12, 25), (64, 70), (5000,), (3, 50, 40), (7, 1), (0,), (4, 0)]
MEDIUM: list[Shape] = [(9000,), (16, 1000), (300, 129), (70_000,), (70, 1000), (3000, 24), (20, 50, 70), (2, 33_000), (64, 64, 8)]
LARGE: list[Shape] = [(1_200_000,), (1200, 1000), (300_000, 4)]
DTYPES = ["float32"] * 12 + ["float64", "bfloat16", "float16", "int32"]
LETTER = re.compile(r"(?<![.\w'])[xyzimvsknqd](?![\w'=])")


class Program:
    """A function of floats, floats of a number each, integers, floats and booleans."""

    def __init__(self, seed: int, number: int, shapes: Sequence[Shape] = ()) -> None:
        rng = random.Random(f"{seed} {number}")
        self.dtype, self.mode = rng.choice(DTYPES), rng.choice(MODES)
        large = rng.random() < 0.1 and self.mode in ("jit", "of grad", "grad of")
        self.shape = rng.choice(shapes or (LARGE if large else rng.choice([SMALL, MEDIUM, MEDIUM])))
        if self.mode in ("hessian", "jacobian"):
            self.shape = rng.choice([(10,), (3, 40), (300,)])
        if self.dtype == "int32" and self.mode not in OF_INTEGERS:
            self.mode = "jit"
        self.kind = rng.choice(["exact", "rounded"])
        self.odd = rng.random() < 0.1
        """NaN and infinities among the numbers."""
        self.draw = rng.randrange(1 << 30)
        self.lines: dict[str, str] = {}
        self.outputs: list[str] = []
        with warnings.catch_warnings(), jax.enable_x64(self.dtype == "float64"):
            warnings.simplefilter("ignore")
            self._draw(rng)

    def _draw(self, rng: random.Random) -> None:
        made = {name: jax.typeof(a) for name, a in zip("xwiyb", self.arrays(), strict=True)}
        wanted = rng.randrange(2, 7)
        for _ in range(200):
            if len(self.lines) == wanted:
                break
            line = self._filled(rng, rng.choice(KINDS[self.kind if rng.random() < 0.4 else "exact"]), made)
            used = [n for n in made if re.search(rf"\b{n}\b", line)]
            try:
                t = jax.eval_shape(eval(f"lambda {', '.join(used)}: {line}", NAMES), *[made[n] for n in used])
            except Exception:  # of a shape or dtype that the idiom is not for
                continue
            if hasattr(t, "shape") and t.size <= 2_000_000:
                name = f"t{len(self.lines)}"
                self.lines[name], made[name] = line, t
        read = set(re.findall(r"t\d+", " ".join(self.lines.values())))
        self.outputs = [n for n in self.lines if n not in read or rng.random() < 0.2]

    def _filled(self, rng: random.Random, idiom: str, made: dict[str, Any]) -> str:
        shape, axis = self.shape, rng.randrange(len(self.shape))
        number = jnp.integer if self.dtype == "int32" else jnp.inexact

        def of(fits: Callable[[Any], bool], other: str = "x") -> str:
            names = [n for n, t in made.items() if fits(t)]
            late = [n for n in names if n in list(made)[-3:]]
            return rng.choice(late if late and rng.random() < 0.6 else names or [other])

        def real(t: Any) -> bool:
            return jnp.issubdtype(t.dtype, number)

        def broadcasts(t: Any) -> bool:
            return t.ndim <= len(shape) and all(a in (1, b) for a, b in zip(t.shape[::-1], shape[::-1], strict=False))

        x, y = (of(lambda t: real(t) and t.shape == shape) for _ in "xy")
        by_row = [f"{x}.max({axis}, keepdims=True)", f"jnp.roll({x}, 1, {axis})", f"lax.cummax({y}, {axis})", f"jnp.abs({x})"]
        letters: dict[str, Any] = {
            "x": x,
            "y": y,
            "z": of(lambda t: real(t) and broadcasts(t)) if rng.random() < 0.7 else rng.choice(by_row),
            "i": of(lambda t: t.dtype == jnp.int32 and t.shape == shape, "i"),
            "m": of(lambda t: t.dtype == bool and t.shape == shape, "b"),
            "v": of(lambda t: real(t) and t.ndim == 1 and t.size > 1, "x.ravel()"),
            "s": of(lambda t: real(t) and t.shape == (), f"{x}.max()"),
            "k": axis,
            "n": shape[axis],
            "q": rng.choice([2, 0.5, -1, 3]),
            "d": rng.choice([1, 2, 3]),
        }
        return LETTER.sub(lambda m: str(letters.get(m[0], m[0])), idiom)

    def arrays(self) -> list[Any]:
        draw = np.random.default_rng(self.draw)
        whole = self.kind == "exact" or self.dtype == "int32"
        shapes = [self.shape, (*self.shape[:-1], 1), self.shape]
        x, w, y = (draw.integers(-5, 6, s) if whole else draw.standard_normal(s) for s in shapes)
        if self.odd and self.dtype != "int32":
            odd = draw.choice([np.nan, np.inf, -np.inf, -0.0, 1e-42], self.shape)
            x = np.where(draw.random(self.shape) < 0.1, odd, x)
        i, b = draw.integers(-3, 40, self.shape), draw.random(self.shape) < 0.3
        x, w, y = (jnp.asarray(a).astype(self.dtype) for a in (x, w, y))
        return [x, w, jnp.asarray(i, jnp.int32), y, jnp.asarray(b)]

    @property
    def text(self) -> str:
        """Its lines, those that are needed."""
        needed, kept = set(self.outputs), []
        for name, line in reversed(self.lines.items()):
            if name in needed:
                kept.append(f"{name} = {line}")
                needed |= set(re.findall(r"t\d+", line))
        return "\n    ".join(["def fn(x, w, i, y, b):", *kept[::-1], f"return {', '.join(self.outputs)},"])

    def function(self) -> Callable[..., Any]:
        scope = dict(NAMES)
        exec(self.text, scope)
        return scope["fn"]
