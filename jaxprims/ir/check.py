"""Is a Program one? What was parsed may have been edited or damaged; kernels made of it would read and write anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from .contraction import ALLOWED, CONTRACTS
from .program import BINARY, COMPARE, CONTROL, COUNTED, DTYPES, FOLDED, UNARY, Instr, Program, is_float, itemsize

_ANY = frozenset("add mul max min".split()) | COMPARE
_BITS = frozenset("and or xor not".split())
_INTEGERS = frozenset("shift_left shift_right_logical shift_right_arithmetic population_count clz".split())
_NUMBERS = frozenset("sub neg abs sign div rem".split())
MOST_TURNS = 2**31 - 1
"""Of a ``loop``: it counts in s32."""


def check_program(
    p: Program, params: Sequence[str], results: Sequence[str] | None, uniforms: Sequence[str], name: str = "program"
) -> None:
    """Raises ValueError unless ``p`` takes these parameters, gives these results (None: whatever it gives) and reads none but
    these captured arrays."""
    if p.params != tuple(params):
        raise ValueError(f"{name} takes ({', '.join(p.params)}); wanted ({', '.join(params)})")
    for k, instr in enumerate(p.body):
        try:
            _check_instr(p, k, instr, uniforms)
        except ValueError as e:
            raise ValueError(f"{name}, %{k} = {instr.op} {instr.dtype}: {e}") from None
    for r in p.results:
        if not 0 <= r < len(p.body) or p.body[r].dtype not in DTYPES:
            raise ValueError(f"{name}: there is no value %{r}")
    if results is not None and p.result_dtypes != tuple(results):
        raise ValueError(f"{name} gives ({', '.join(p.result_dtypes)}); wanted ({', '.join(results)})")


def check_bits(bits: int, dtype: str) -> None:
    """Raises ValueError unless a scalar of ``dtype`` can have these bits."""
    if not 0 <= bits < (2 if dtype == "b1" else 1 << 8 * itemsize(dtype)):
        raise ValueError(f"{bits:#x} are no bits of {dtype}")


def _want(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(what)


def _check_instr(p: Program, k: int, instr: Instr, uniforms: Sequence[str]) -> None:
    op, dtype, attr = instr.op, instr.dtype, instr.attr
    _want(all(0 <= o < k for o in instr.operands), "an operand is not computed before")
    given = [p.body[o].dtype for o in instr.operands]
    _want(dtype in DTYPES or (dtype == "tuple" and op in CONTROL), "unknown dtype")
    _want(op == "item" or "tuple" not in given, "an operand is a tuple")
    contracts = op in CONTRACTS and attr == ALLOWED and is_float(dtype)
    numbered = op in CONTROL or op in ("arg", "const", "load", "item")
    _want((attr is not None) == numbered or contracts, "a number too many, or one is missing")
    if op == "arg":
        _want(not given and 0 <= attr < len(p.params) and p.params[attr] == dtype, "no such parameter")
    elif op == "const":
        _want(not given, "a constant has no operands")
        check_bits(attr, dtype)
    elif op == "load":
        _want(0 <= attr < len(uniforms) and uniforms[attr] == dtype, "no such captured array")
        _want(given in (["s32"], ["s64"]), "a position is s32 or s64")
    elif op == "item":
        _want(len(given) == 1 and given[0] == "tuple", "its operand is no tuple")
        kinds = p.body[instr.operands[0]].attr[-1].result_dtypes
        _want(0 <= attr < len(kinds) and kinds[attr] == dtype, "no such result")
    elif op in CONTROL:
        _want(dtype == "tuple", "its dtype is tuple")
        _check_control(instr, given, uniforms)
    elif op == "select":
        _want(given == ["b1", dtype, dtype], f"of ({', '.join(given)})")
    elif op in ("convert", "bitcast"):
        _want(len(given) == 1 and (op == "convert" or itemsize(given[0]) == itemsize(dtype)), f"of ({', '.join(given)})")
    else:
        _want(op in UNARY or op in BINARY or op in COMPARE, "unknown operation")
        operand = given[0] if given and (op in COMPARE or op == "is_finite") else dtype
        _want(given == [operand] * (1 if op in UNARY else 2), f"of ({', '.join(given)})")
        _want(dtype == operand or dtype == "b1", "its dtype is b1")
        _want(_knows(op, operand), f"there is no such operation on {operand}")


def _knows(op: str, dtype: str) -> bool:
    """Is there such an operation on operands of this dtype?"""
    if op in _ANY:
        return True
    if op in _BITS:
        return not is_float(dtype)
    if op in _NUMBERS:
        return dtype != "b1"
    return (not is_float(dtype) and dtype != "b1") if op in _INTEGERS else is_float(dtype)


def _check_control(instr: Instr, given: Sequence[str], uniforms: Sequence[str]) -> None:
    if instr.op == "cond":
        _want(given[:1] == ["b1"], "it chooses by a b1")
        for branch in instr.attr:
            check_program(branch, given[1:], instr.attr[1].result_dtypes, uniforms, "a branch")
        return
    body = instr.attr[1]
    count = len(body.results)
    _want(count <= len(given), "an initial carry is missing")
    _want(count == 1 or instr.op != "fold", "one carry is folded")
    if instr.op in COUNTED:
        _want((instr.op == "fold") <= instr.attr[0] <= MOST_TURNS, "no number of turns")
        check_program(body, ["s32", *given], given[:count], uniforms, "the body")
        _want(instr.op != "fold" or body.body[body.results[0]].op in FOLDED, "an operation that is not folded")
    else:
        check_program(instr.attr[0], given, ["b1"], uniforms, "the condition")
        check_program(body, given, given[:count], uniforms, "the body")
