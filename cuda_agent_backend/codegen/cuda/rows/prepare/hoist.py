"""Hoists out of the loop over a row what each element would work out again from values that the row has one of.

Compilers see through this, but not where a function has a branch of its own, as divisions and square roots do: a norm's
deviation would be worked out for each lane of each vector, and all loads after it would wait for its branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from cuda_agent_backend.codegen.analysis.passes import passes
from cuda_agent_backend.codegen.cuda.common.parts import local_types
from cuda_agent_backend.codegen.ir.kernel import Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.region import Store
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value, pruned

COSTLY = frozenset(
    ("truediv", "div", "reciprocal", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log1p", "log2",
     "pow", "sigmoid", "tanh")
)  # fmt: skip
"""What is worth a value of its own; the rest compilers move by themselves, or it costs nothing."""
CHEAP = frozenset(("add", "sub", "mul", "neg", "abs", "square", "maximum", "minimum", "constant"))


@dataclass(frozen=True)
class _Same:
    """A value that is the same for a whole row: what it is made of, and its text, by which equal ones are found."""

    needed: frozenset[Value]
    text: str
    costly: bool
    of_row: bool


def hoist_row_values(kernel: Kernel) -> Kernel:
    """``kernel`` with float32 values that are the same for a whole row as stages of their own before its loops."""
    types = local_types(kernel)
    scalars = {
        n for n, local in kernel.locals.items() if local.size == 1 and types.get(n) == "float"
    }
    stages: list[RowStage] = []
    made: dict[str, str] = {}
    left = iter(kernel.stages)
    for p in passes(kernel, tails=True):
        rest: list[RowStage] = []
        for stage in (next(left) for _ in p.stages):
            before, changed = _taken_out(stage, scalars, made) if stage.inner else ([], stage)
            stages += before
            rest.append(changed)
        stages += rest
    locals_ = {name: Local(name, 1) for name in made.values()}
    return replace(kernel, stages=tuple(stages), locals={**kernel.locals, **locals_})


def _taken_out(
    stage: RowStage, scalars: set[str], made: dict[str, str]
) -> tuple[list[RowStage], RowStage]:
    """The stages that work out what a stage repeats, and the stage that reads it. ``made``: names by text so far."""
    same = _same_for_a_row(stage.body, scalars)
    before: list[RowStage] = []
    reads: dict[Value, Instruction] = {}
    for value in _used_elsewhere(stage.body, same):
        one, zero = same[value], sympy.S.Zero
        if not (one.costly and one.of_row):
            continue
        name = made.setdefault(one.text, f"{stage.name}_row{value.number}")
        if name == f"{stage.name}_row{value.number}":
            body = Body([i for i in stage.body.instructions if i.result in one.needed], (value,))
            store = (Store(name, zero),)
            before.append(RowStage(name, "map", "", torch.float32, (), body, (), store))
        reads[value] = Instruction(value, "local", dtype=torch.float32, buffer=name, index=zero)
    if not reads:
        return [], stage
    changed = [reads.get(i.result, i) for i in stage.body.instructions]
    return before, replace(stage, body=pruned(Body(changed, stage.body.results)))


def _same_for_a_row(body: Body, scalars: set[str]) -> dict[Value, _Same]:
    found: dict[Value, _Same] = {}
    for i in body.instructions:
        operands = [o for o in i.operands if isinstance(o, Value)]
        scalar = i.op == "local" and i.buffer in scalars
        count = i.op == "index_expr" and i.index is not None and i.index.is_Integer
        plain = i.body is None and (i.op in COSTLY | CHEAP or count)
        single = i.dtype in (None, torch.float32) and all(o in found for o in operands)
        if not (scalar or (plain and single)):
            continue
        parts = [found[o] for o in operands]
        given = [found[o].text if isinstance(o, Value) else str(o) for o in i.operands]
        found[i.result] = _Same(
            frozenset({i.result}.union(*(part.needed for part in parts))),
            f"{i.op}[{i.buffer},{i.index}]({', '.join(given)})",
            i.op in COSTLY or any(part.costly for part in parts),
            scalar or any(part.of_row for part in parts),
        )
    return found


def _used_elsewhere(body: Body, same: Mapping[Value, _Same]) -> list[Value]:
    """Those of ``same`` that something else needs, in order."""
    used = set(body.results)
    for i in body.instructions:
        if i.result not in same:
            used.update(o for o in i.operands if isinstance(o, Value))
            if i.body is not None:
                used.update(o for w in i.body.walk() for o in w.operands if isinstance(o, Value))
                used.update(i.body.results)
    return [value for value in same if value in used]
