"""Hoists what all places of a matrix share, such as the decay of a head: it is worked out once, not at each place.

Compilers do this by themselves where no function has a branch of its own. Logarithms and the like have one: softplus
would be worked out for each weight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import sympy
import torch

from cuda_agent_backend.codegen.ir.ssa import COMPARISONS, Body, Instruction, Value, pruned

TRUTHS = (*COMPARISONS, "logical_and", "logical_or", "logical_not", "isnan", "isinf", "signbit")
READ = ("load", "constant", "index_expr")
FOLLOWED = frozenset(
    (*READ, *TRUTHS, "to_dtype", "identity", "where", "abs", "add", "sub", "mul", "truediv", "div", "neg", "maximum",
     "minimum", "square", "reciprocal", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log1p", "log2", "pow", "relu",
     "sigmoid", "tanh", "sin", "cos")
)  # fmt: skip


@dataclass(frozen=True)
class Shared:
    """``body`` that reads what is shared by name, and for each name the body that makes it, a float32."""

    body: Body
    made: dict[str, Body]


@dataclass(frozen=True)
class _Same:
    """A value that is the same at all places. ``worked``: made by arithmetic of what is read."""

    dtype: torch.dtype | None
    loaded: bool
    worked: bool


def shared_by_places(
    body: Body,
    places: Collection[sympy.Symbol],
    dtype_of: Callable[[str], torch.dtype],
    prefix: str,
) -> Shared:
    """The body with what no index of ``places`` tells apart taken out. dtype_of: of a buffer."""
    body = pruned(body)
    same = _same(body, set(places), dtype_of)
    reads: dict[Value, Instruction] = {}
    made: dict[str, Body] = {}
    needed = set(body.results)
    for i in reversed(body.instructions):
        own = same.get(i.result)
        if own is not None and i.result not in needed:
            continue
        if own is not None and own.loaded and own.worked and own.dtype == torch.float32:
            name = f"{prefix}{len(made)}"
            made[name] = pruned(Body(body.instructions, (i.result,)))
            reads[i.result] = Instruction(i.result, "local", dtype=torch.float32, buffer=name)
        else:
            needed.update(_uses(i))
    changed = [reads.get(i.result, i) for i in body.instructions]
    return Shared(pruned(Body(changed, body.results)), made)


def _uses(i: Instruction) -> list[Value]:
    uses = list(i.operands)
    if i.body is not None:
        uses += [*i.body.results, *(o for own in i.body.walk() for o in own.operands)]
    return [v for v in uses if isinstance(v, Value)]


def _same(
    body: Body, places: set[sympy.Symbol], dtype_of: Callable[[str], torch.dtype]
) -> dict[Value, _Same]:
    found: dict[Value, _Same] = {}
    for i in body.instructions:
        operands = [o for o in i.operands if isinstance(o, Value)]
        across = i.index is not None and not i.index.free_symbols.isdisjoint(places)
        if i.op not in FOLLOWED or i.body is not None or across:
            continue
        if any(o not in found for o in operands):
            continue
        parts = [found[o] for o in operands]
        found[i.result] = _Same(
            _dtype(i, parts, dtype_of),
            i.op == "load" or any(part.loaded for part in parts),
            i.op not in (*READ, "identity"),
        )
    return found


def _dtype(
    i: Instruction, parts: list[_Same], dtype_of: Callable[[str], torch.dtype]
) -> torch.dtype | None:
    if i.op in TRUTHS:
        return torch.bool
    if i.dtype is not None:
        return i.dtype
    if i.op == "load" and i.buffer is not None:
        return dtype_of(i.buffer)
    return parts[-1].dtype if parts else None
