"""Which floating-point inputs a task takes roots and logarithms of: variances, probabilities, counts.

Drawn from all numbers, half of such an input would make NaN of most results: little would be compared, and what would
be timed is how NaN is computed with, which may take another way through a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from sandbox.task.arguments import Arg
from sandbox.task.task import InputRef, Node, Ref, Task, references

_ROOTS = frozenset(["sqrt", "rsqrt", "log", "log2", "log10"])
VIEWS = frozenset(
    [
        "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "expand", "permute", "transpose", "t", "clone",
        "alias", "_to_copy", "convert_element_type", "contiguous", "detach",
    ]
)  # fmt: skip
"""Operators whose result holds all values of their operand and nothing else."""
_LARGEST = {"add": 1e-3, "mul": math.inf, "div": math.inf}
"""With a positive number up to this, these keep the sign of what is not tiny. What is added is as small as an epsilon:
with more, negative values are in the domain and must be drawn, or what a kernel does below zero is not seen."""


def not_negative(task: Task) -> frozenset[int]:
    """Inputs that reach a root or a logarithm through views of the whole, positive factors and tiny shifts."""
    found: set[int] = set()
    for node in task.nodes:
        if _needs_domain(node):
            found.update(_sources(task, node.args.get("self")))
    return frozenset(
        index for index in found if task.inputs[index].dtype.startswith(("float", "bfloat"))
    )


def _needs_domain(node: Node) -> bool:
    if node.name == "pow":
        exponent = node.args.get("exponent")
        return isinstance(exponent, float) and not exponent.is_integer()
    return node.name in _ROOTS


def _sources(task: Task, value: Arg) -> Iterator[int]:
    todo: list[Ref] = list(references(value))
    while todo:
        reference = todo.pop()
        if isinstance(reference, InputRef):
            yield reference.index
            continue
        node = task.nodes[reference.node]
        if _keeps_sign(node):
            todo.extend(references(node.args.get("self")))


def _keeps_sign(node: Node) -> bool:
    number = node.args.get("other")
    scaled = isinstance(number, int | float) and 0 < number <= _LARGEST.get(node.name, 0)
    return node.name in VIEWS or scaled
