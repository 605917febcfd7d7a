"""The parameters of primitives that rules take account of, or may pass over. One with any other value is :class:`Unsupported`:
never ignored, in whatever version of JAX it comes up. None is what a parameter is that nobody gave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax

from .emit import Unsupported
from .jaxprs import REDUCED_BY, scatters

Check = Callable[[Any, Any], bool]
"""Of a value and its equation: can the rule do it?"""


def _any(value: Any, eqn: Any) -> bool:
    return True


def _precision(value: Any, eqn: Any) -> bool:
    """Products and sums are made in full: as precise as any. Algorithms that round on the way are something else."""
    return all(isinstance(p, lax.Precision) or p is None for p in (value if isinstance(value, tuple) else (value,)))


INDEX_MODES = ("CLIP", "FILL_OR_DROP", "PROMISE_IN_BOUNDS")
"""What gathers and scatters do with indices out of range."""


def _mode(value: Any, eqn: Any) -> bool:
    return value.name in INDEX_MODES


def _names(text: str) -> dict[str, Check]:
    return dict.fromkeys(text.split(), _any)


_WITH_ACCURACY = "cbrt cos cosh erf erfc exp exp2 expm1 log log1p log2 logistic rsqrt sin sinh sqrt tan tanh".split()
_SCATTER = _names("dimension_numbers indices_are_sorted unique_indices update_jaxpr update_consts") | {"mode": _mode}
_ROUNDING = lax.RoundingMethod

HANDLED: dict[str, dict[str, Check]] = {
    **{name: {"accuracy": lambda value, _: getattr(value, "name", None) == "DEFAULT"} for name in _WITH_ACCURACY},
    "mul": {"out_dtype": lambda value, eqn: all(value == v.aval.dtype for v in eqn.invars)},
    "argmax": _names("axes index_dtype"),
    "argmin": _names("axes index_dtype"),
    "bitcast_convert_type": _names("new_dtype"),
    "broadcast_in_dim": _names("shape broadcast_dimensions sharding"),
    "concatenate": _names("dimension"),
    "conj": _names("input_dtype"),
    "cond": _names("branches linear"),
    "convert_element_type": _names("new_dtype weak_type sharding"),
    **{f"cum{how}": _names("axis reverse") for how in ("sum", "prod", "max", "min", "logsumexp")},
    "dot_general": {
        **_names("dimension_numbers out_sharding"),
        "precision": _precision,
        "preferred_element_type": lambda value, eqn: all(value.itemsize >= v.aval.dtype.itemsize for v in eqn.invars),
    },
    "dynamic_slice": _names("slice_sizes"),
    "expand_dims": _names("dimensions"),
    "gather": _names("dimension_numbers slice_sizes unique_indices indices_are_sorted fill_value") | {"mode": _mode},
    "integer_pow": _names("y"),
    "iota": _names("dtype shape dimension sharding"),
    "iota_2x32_shape": _names("shape"),
    "pad": _names("padding_config"),
    "polynomial": _names("unroll"),
    "random_at": _names("bit_width"),
    "random_bits": _names("bit_width shape"),
    "random_seed": _names("impl"),
    "random_split": _names("shape"),
    "random_wrap": _names("impl"),
    **dict.fromkeys(REDUCED_BY, _names("axes out_sharding")),
    "reduce_precision": _names("exponent_bits mantissa_bits"),
    "reshape": _names("new_sizes dimensions sharding"),
    "rev": _names("dimensions"),
    "round": {"rounding_method": lambda value, _: value in (_ROUNDING.AWAY_FROM_ZERO, _ROUNDING.TO_NEAREST_EVEN)},
    "scan": _names("jaxpr length reverse num_consts num_carry linear unroll ft_in ft_out _split_transpose"),
    **dict.fromkeys(scatters("add", "sub", "mul", "min", "max") | {"scatter"}, _SCATTER),
    "slice": _names("start_indices limit_indices strides"),
    "sort": _names("dimension is_stable num_keys"),
    "split": _names("sizes axis"),
    "squeeze": _names("dimensions"),
    "stack": _names("axis"),
    "tile": _names("reps"),
    "top_k": _names("axis k is_stable"),
    "transpose": _names("permutation"),
    "unstack": _names("axis"),
    "while": _names("cond_jaxpr body_jaxpr cond_nconsts body_nconsts"),
}
"""By primitive and parameter; primitives that are not here have none. Shardings say where a result lies, not what it is; that
indices are sorted, or unique, and how a loop is unrolled, is for speed."""


def check_parameters(eqn: Any) -> None:
    handled = HANDLED.get(eqn.primitive.name, {})
    for name, value in eqn.params.items():
        if value is not None and not (name in handled and handled[name](value, eqn)):
            raise Unsupported(eqn.primitive.name, f"with {name} = {value!r:.80}")
