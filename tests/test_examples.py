"""The examples are documentation: each runs and checks its own result."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

EXAMPLES = Path(__file__).parent.parent / "examples"
STENCILS: dict[str, dict[str, Any]] = {
    "edge_detection": {},
    "game_of_life": {"side": 64, "times": (0, 10)},
    "gray_scott": {"side": 80, "steps": 100},
    "heat_diffusivity": {"side": 24, "rounds": 30},
    "wave_tank": {"side": 80, "times": (0, 60)},
}
"""Those that draw a picture, and with what they are quick."""
SMALL = sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem not in ("registration", "state_space", *STENCILS))


@pytest.fixture(autouse=True)
def _examples_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.fixture
def rough_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few points, their parts laid out as they come: to make them as they are shown takes longer than the example."""
    from matplotlib.figure import Figure

    save = Figure.savefig

    def rough(figure: Figure, *args: Any, **options: Any) -> None:
        figure.set_layout_engine("none")
        save(figure, *args, **options | {"dpi": 20})

    monkeypatch.setattr(Figure, "savefig", rough)


@pytest.mark.parametrize("name", SMALL)
def test_small_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(name).main()
    assert 0 < capsys.readouterr().out.count("\n") <= 6, "an example prints a few lines"


def test_small_examples_are_small() -> None:
    lengths = {name: len((EXAMPLES / f"{name}.py").read_text().splitlines()) for name in SMALL}
    assert len(lengths) >= 9 and np.median(list(lengths.values())) < 60 and max(lengths.values()) < 120, lengths


@pytest.mark.parametrize("name", STENCILS)
@pytest.mark.usefixtures("rough_pictures")
@pytest.mark.dear
def test_stencil_example(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / f"{name}.png"
    found = importlib.import_module(name).main(**STENCILS[name], plot=plot)
    assert 0 < capsys.readouterr().out.count("\n") <= 6
    assert plot.read_bytes().startswith(b"\x89PNG")
    if name == "heat_diffusivity":
        assert found > 0.8
    if name == "edge_detection":
        assert 0.01 < np.mean(found) < 0.1
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 150, "a page or so"


@pytest.mark.dear
def test_state_space_layer_learns(capsys: pytest.CaptureFixture[str]) -> None:
    assert importlib.import_module("state_space").main(epochs=3) > 0.7  # by guessing: 0.1
    assert "of 360 unseen digits" in capsys.readouterr().out


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    """Two random pictures with details of several sizes, as photographs have."""
    rng = np.random.default_rng(1)

    def picture() -> np.ndarray:
        layers = [ndimage.gaussian_filter(rng.normal(size=(160, 200)), sigma, mode="wrap") for sigma in (2, 6, 18)]
        x = sum(layer / layer.std() for layer in layers)
        return ((x - x.min()) / (x.max() - x.min())).astype(np.float32)

    return [picture(), picture()]


@pytest.mark.usefixtures("rough_pictures")
@pytest.mark.dear
def test_registration_recovers_the_shift(images: list[np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registration = importlib.import_module("registration")
    plot = tmp_path / "registration.png"
    found = registration.main(images, scales=(4, 1), repeats=1, plot=plot)
    assert np.abs(found - registration.TRUE_SHIFT).max() < 0.2
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "recovered shift" in capsys.readouterr().out


def test_registration_gradient_is_the_slope(images: list[np.ndarray]) -> None:
    import jax
    import jax.numpy as jnp

    registration = importlib.import_module("registration")
    level = registration.Level.make(images[0], registration.shifted_negative(images[0], (2.3, -1.6)), 1)
    information = jax.jit(level.information)
    shift, h = jnp.array([1.4, -0.7], jnp.float32), 0.02
    slopes = [float(information(shift + d) - information(shift - d)) / (2 * h) for d in h * jnp.eye(2)]
    np.testing.assert_allclose(jax.grad(information)(shift), slopes, rtol=0.02, atol=2e-3)
