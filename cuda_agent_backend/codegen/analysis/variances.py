"""Means of variances, which have to be right where the sum of the numbers overflows and their mean does not.

Eager mode adds up the numbers of a variance in double on a processor. A sum of float32 overflows beside the largest
numbers, as a whole or on the way, and parts of it to infinities of both signs make a NaN of the mean. So such a sum and
the division behind it become one: `MEAN` gives the mean itself, which a writer works out anew where it is not finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import sympy

from cuda_agent_backend.codegen.ir.kernel import Kernel, RowStage
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value, number_of, pruned

MEAN = "mean"
"""How a stage combines that gives the mean of its values."""
Sums = Mapping[str, int]
"""The number of terms of each sum, by the sum's buffer."""


def mark_variances(kernel: Kernel) -> Kernel:
    """Have sums that are only divided by the number of their terms give the mean, where it is that of a variance.

    Takes sums that are ``mean_sum``: those that `expand_welford` made, and those that `mark_means` has marked.
    """
    sums = {
        stage.local_stores[0].buffer: stage.points
        for stage in kernel.stages
        if stage.combine == "mean_sum" and len(stage.local_stores) == 1 and not stage.stores
    }
    only_divided = {
        name: points
        for name, points in sums.items()
        if all(_only_divides(stage.body, name, points) for stage in kernel.stages)
    }
    found = {name: only_divided[name] for name in _of_variances(kernel, only_divided)}
    return replace(kernel, stages=tuple(_with_means(stage, found) for stage in kernel.stages))


def _divisions(body: Body, sums: Sums) -> dict[Value, Instruction]:
    """For each value that is a mean, the instruction that reads its sum."""
    numbers = {
        i.result: _number(i) for i in body.instructions if i.op in ("constant", "index_expr")
    }
    reads = {i.result: i for i in body.instructions if i.op == "local" and i.buffer in sums}
    found: dict[Value, Instruction] = {}
    for i in body.instructions:
        if i.op == "truediv" and i.operands[0] in reads:
            read = reads[i.operands[0]]
            if numbers.get(i.operands[1]) == sums[str(read.buffer)]:
                found[i.result] = read
    return found


def _number(i: Instruction) -> float | None:
    """The number that a constant is, or an index that depends on no loop."""
    if i.op == "constant":
        return number_of(i.operands[0])
    return float(i.index) if isinstance(i.index, sympy.Number) else None


def _only_divides(body: Body, name: str, points: int) -> bool:
    """Whether a body makes nothing but means of a sum."""
    reads = [i for i in body.walk() if i.op == "local" and i.buffer == name]
    divided = _divisions(body, {name: points})
    if any(all(read is not i for i in body.instructions) for read in reads):
        return False
    values = {read.result for read in reads}
    others = [v for i in body.walk() if i.result not in divided for v in _used(i)]
    return values.isdisjoint((*others, *body.results))


def _used(i: Instruction) -> Iterator[Value]:
    yield from (operand for operand in i.operands if isinstance(operand, Value))
    if i.body is not None:
        yield from i.body.results


def _of_variances(kernel: Kernel, sums: Sums) -> set[str]:
    """The sums whose mean is taken from numbers that are then squared."""
    kept: dict[str, str] = {}
    found: set[str] = set()
    for stage in kernel.stages:
        means = {value: str(i.buffer) for value, i in _divisions(stage.body, sums).items()}
        differences: dict[Value, str] = {}
        for i in stage.body.instructions:
            first, *others = i.operands or (None,)
            if i.op == "local" and i.buffer in kept:
                means[i.result] = kept[i.buffer]
            elif i.op == "sub" and others[0] in means:
                differences[i.result] = means[others[0]]
            elif first in differences and _squares(i):
                found.add(differences[first])
        made = means.get(stage.body.results[0])
        if made is not None and stage.kind == "map":
            kept |= {store.buffer: made for store in stage.local_stores}
    return found


def _squares(i: Instruction) -> bool:
    return i.op == "square" or (i.op == "mul" and i.operands[0] == i.operands[1])


def _with_means(stage: RowStage, sums: Sums) -> RowStage:
    """A stage that gives the mean in place of a sum, or reads it."""
    if stage.combine == "mean_sum" and any(s.buffer in sums for s in stage.local_stores):
        stage = replace(stage, combine=MEAN)
    divided = _divisions(stage.body, sums)
    if not divided:
        return stage
    instructions = [
        replace(divided[i.result], result=i.result) if i.result in divided else i
        for i in stage.body.instructions
    ]
    return replace(stage, body=pruned(Body(instructions, stage.body.results)))
