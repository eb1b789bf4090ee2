"""Back-to-back products among the tasks: Q K^T, pointwise work, a product with V, and pointwise work behind it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from unittest.mock import patch

import sympy
from torch._inductor import ir
from torch.fx import Node

from cuda_agent_backend.codegen.analysis.attention import Matrices, Strides
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import row_major
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.value_types import WIDE
from cuda_agent_backend.codegen.lowering.lower import lower
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.graph.edit import shape_of
from cuda_agent_backend.graph.strides import reshaped, single, steps_of
from cuda_agent_backend.operators.back_to_back import BackToBack, back_to_back_of, keeps_order
from sandbox.graph.build import build_graph
from sandbox.task.task import Task

SCORE, MIXED, TOTAL = "score", "mixed", "total"
"""Values that are at hand: of each place, and the sum of a row's weights."""
PRODUCTS = ("aten.bmm.default", "aten.mm.default")


@dataclass(frozen=True)
class Pointwise:
    """What is done at each place, as one loop nest whose last two loops are rows and columns.

    inputs: for each of the region's inputs, in order, the task's input or the name of a value that is at hand.
    """

    region: LoweredRegion
    inputs: tuple[int | str, ...]


@dataclass(frozen=True)
class LinearAttention:
    """``end(weigh(Q K^T) V)`` for each batch and head, in float32.

    Heads of K and V serve ``heads // shared_heads`` neighbouring heads of Q each. ``size``: elements of a row of Q and
    K, ``width``: of V. ``weigh`` is given `SCORE`, ``end`` `MIXED` and, where ``summed``, `TOTAL`; None where they
    change nothing.
    """

    batches: int
    heads: int
    shared_heads: int
    queries: int
    keys: int
    size: int
    width: int
    query: Matrices
    key: Matrices
    value: Matrices
    output_steps: Strides
    weigh: Pointwise | None
    end: Pointwise | None
    summed: bool

    @property
    def inputs(self) -> list[int]:
        """What is read beside the products."""
        parts = [p for p in (self.weigh, self.end) if p is not None]
        return sorted({n for p in parts for n in p.inputs if isinstance(n, int)})


def linear_attention_of(task: Task) -> LinearAttention | None:
    """The form that ``task`` is, None where it is anything else.

    Raises:
        Unsupported: what is done point by point is no map.
    """
    products = [number for number, node in enumerate(task.nodes) if node.op in PRODUCTS]
    if task.target != "cuda" or len(products) != 2 or len(task.outputs) != 1:
        return None
    graph = build_graph(replace(task, target="cpu")).graph
    last = graph.output_node().all_input_nodes[0]
    found = next(
        (
            form
            for node in graph.nodes
            if (form := back_to_back_of(node, whole=True)) is not None and form.last is last
        ),
        None,
    )
    numbers = {node: i for i, node in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    return None if found is None else _of(task, found, numbers)


def _of(task: Task, found: BackToBack, numbers: dict[Node, int]) -> LinearAttention | None:
    steps = _output_steps(task, found)
    operands = (found.query, found.key, found.value)
    if steps is None or any(own.node not in numbers for own in operands):
        return None
    query, key, value = (Matrices(numbers[own.node], own.steps) for own in operands)
    rows: dict[Node, str] = dict.fromkeys(found.sums, TOTAL)
    return LinearAttention(
        found.batches, found.heads, found.shared_heads, found.queries, found.keys, found.size, found.width,
        query, key, value, steps,
        _pointwise(found.weights, {found.product: SCORE}, numbers),
        _pointwise(found.last, {found.mixing: MIXED, **rows}, numbers),
        bool(found.sums),
    )  # fmt: skip


def _output_steps(task: Task, found: BackToBack) -> Strides | None:
    spec = task.output_specs[0]
    shape = (found.batches, found.heads, found.queries, found.width)
    laid = reshaped(steps_of(spec.shape, spec.stride), shape)
    steps = tuple(s for dim in laid or () if (s := single(dim)) is not None)
    return steps if len(steps) == 4 and steps[3] == 1 else None


def _pointwise(result: Node, known: dict[Node, str], numbers: dict[Node, int]) -> Pointwise | None:
    """What makes ``result`` of values that are at hand and of the task's inputs."""
    start = result
    while start not in known and keeps_order(start):
        start = start.args[0]  # type: ignore[assignment]
    if start in known:
        return None
    nodes = _made_of(result, {*known, *numbers})
    made = canonical(nodes, (result,), "cpu")
    if not isinstance(made, Canonical):
        raise Unsupported(f"pointwise work: {made.reason}")
    with _reused_anew():
        region = lower(replace(made.task, target="cuda"))
    if [s.kind for s in region.stages] != ["map"]:
        raise Unsupported("pointwise work that is no map")
    outer = tuple(n for _, n in region.stages[0].outer)
    last, rest = shape_of(result)[-2:], math.prod(shape_of(result)[:-2])
    if outer[-2:] != last or math.prod(outer[:-2]) != rest or math.prod(outer) >= WIDE:
        raise Unsupported(f"pointwise work on {outer} for {shape_of(result)}")
    _check_places(region, [known.get(n) for n in made.inputs])
    given = (known[n] if n in known else numbers[n] for n in made.inputs)
    return Pointwise(region, tuple(given))


def _made_of(result: Node, known: set[Node]) -> list[Node]:
    """All before a node up to what is known, in order."""
    found, waiting = {result}, [result]
    while waiting:
        for read in waiting.pop().all_input_nodes:
            if read not in found and read not in known:
                found.add(read)
                waiting.append(read)
    return [n for n in result.graph.nodes if n in found]


def _check_places(region: LoweredRegion, names: list[str | None]) -> None:
    """Raises Unsupported where a value that is at hand is wanted for another place than the loops'."""
    loops = region.stages[0].outer
    at_hand = {b: name for b, name in zip(region.inputs, names, strict=True) if name is not None}
    for i in region.stages[0].body.loads():
        if i.buffer in at_hand:
            own = loops[:-1] if at_hand[i.buffer] == TOTAL else loops
            if i.index is None or sympy.expand(i.index - row_major(own)) != 0:
                raise Unsupported(f"a {at_hand[i.buffer]} at another place")


@contextlib.contextmanager
def _reused_anew() -> Iterator[None]:
    """Inductor keeps results of exponentials and the like that are reused on the cpu; threads of ours cannot."""
    with patch.object(ir, "is_cpu", lambda _: False):
        yield
