"""A loop that tracing has written out -> the same work on all steps at once, with what they hand on as inputs.

All that a step does gets a dimension in front, the steps in the order in which their results are joined. What a step
takes over from the one before is a placeholder of that shape: with it the graph computes nothing that depends on an
order, so that it is lowered like any other, and the kernel that goes through the steps has the states at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from cuda_agent_backend.codegen.cuda.reroll.unrolled import (
    Carried,
    Fixed,
    Made,
    Operand,
    Role,
    Slices,
    Unrolled,
    unrolled_of,
)
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.graph.edit import (
    Editor,
    argument,
    aten,
    dtype_of,
    is_view,
    name_of,
    prims,
    reduced_dims,
    shape_of,
)

REDUCTIONS = {
    "sum": aten.sum.dim_IntList,
    "mean": aten.mean.dim,
    "amax": aten.amax.default,
    "amin": aten.amin.default,
}
OF_ELEMENTS = ("convert_element_type", "_to_copy")
"""Beside those that torch calls pointwise."""

FEW_SINGLE = 4
"""Steps whose results are read by themselves; more are work that is still written out step after step."""


@dataclass(frozen=True)
class State:
    """What a step takes over: what it is ``given`` and, with the steps in front too, what was ``made``; ``initial``."""

    given: Node
    made: Node
    initial: Node


@dataclass(frozen=True)
class RolledGraph:
    """The rewritten graph. backward: whether the step that comes last in its dimension is the first. results: what the
    graph reads of the loop, with all steps in front."""

    steps: int
    backward: bool
    states: tuple[State, ...]
    results: tuple[Node, ...]


def rolled(graph: Graph) -> RolledGraph | None:
    """Rewrite in place the loop of a graph (with metadata); None where there is none.

    Raises:
        Unsupported: the steps do something that is not done here for all of them at once, with the reason. The graph is
            of no use any more.
    """
    loop = unrolled_of(graph)
    if loop is None:
        return None
    written_out = {node for role in loop.roles for node in role.nodes if node is not None}
    rolling = _Rolling(graph, loop)
    states = rolling.states()
    rolling.replace_single(written_out)
    stable_topological_sort(graph)
    _drop_dead(graph, {own for s in states for own in (s.made, s.given, s.initial)})
    if any(node in written_out for node in graph.nodes):
        raise Unsupported("a loop that reads its own results")
    return RolledGraph(loop.steps, loop.backward, states, tuple(rolling.results.values()))


def _drop_dead(graph: Graph, kept: set[Node]) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and node not in kept:
            graph.erase_node(node)


class _Rolling:
    """Makes the nodes of all steps at once, in front of the output."""

    def __init__(self, graph: Graph, loop: Unrolled) -> None:
        self.loop, self.editor = loop, Editor(graph, graph.output_node())
        self.given = {own: self._placeholder(graph, own) for own in loop.carried}
        self.made: dict[int, Node] = {}
        self.results: dict[int, Node] = {}

    def states(self) -> tuple[State, ...]:
        """Make all, and put it in the place of what was joined."""
        for joined, (role, peeled) in self.loop.joined.items():
            self._join(joined, self._result(role), peeled)
        return tuple(
            State(given, self._copy(own.role), own.initial) for own, given in self.given.items()
        )

    def replace_single(self, written_out: set[Node]) -> None:
        """Have those that read a single step's result, such as the state after the last, read it among all of them."""
        last, few = self.loop.steps - 1, FEW_SINGLE
        for number, role in enumerate(self.loop.roles):
            for step, node in enumerate(role.nodes):
                others = [] if node is None else [u for u in node.users if u not in written_out]
                others = [u for u in others if u not in self.loop.joined]
                if node is not None and others:
                    few -= 1
                    if few < 0:
                        raise Unsupported("a loop of which many steps are read one by one")
                    place = last - step if self.loop.backward else step
                    made = self.editor.call(aten.select.int, self._result(number), 0, place)
                    node.replace_all_uses_with(made, delete_user_cb=set(others).__contains__)

    def _copy(self, number: int) -> Node:
        """What a role makes as a buffer of its own, whatever else the graph does with it."""
        return self.editor.call(aten.clone.default, self._of(number))

    def _result(self, number: int) -> Node:
        if number not in self.results:
            self.results[number] = self._copy(number)
        return self.results[number]

    def _placeholder(self, graph: Graph, own: Carried) -> Node:
        like = self.loop.roles[own.role].first.meta["val"]
        initial = own.initial.meta.get("val")
        if not isinstance(initial, torch.Tensor) or initial.shape != like.shape:
            raise Unsupported("a loop whose state begins in another shape")
        if not like.dim():
            raise Unsupported("a loop whose state is a single number")
        if initial.dtype != like.dtype:
            raise Unsupported("a loop whose state begins in another dtype")
        first = next(node for node in graph.nodes if node.op != "placeholder")
        with graph.inserting_before(first):
            made = graph.placeholder(f"state{len(graph.find_nodes(op='placeholder'))}")
        with like.fake_mode:
            shape = (self.loop.steps, *like.shape)
            made.meta["val"] = torch.empty(shape, dtype=like.dtype, device=like.device)
        return made

    def _join(self, joined: Node, made: Node, peeled: int) -> None:
        """Steps behind each other along the dimension of a concatenation, those before the loop where they were."""
        call, rank = self.editor.call, made.meta["val"].dim() - 1
        dim = argument(joined, "dim") % rank
        ahead = [*range(1, dim + 1), 0, *range(dim + 1, rank + 1)]
        parts = list(argument(joined, "tensors"))
        shape = list(shape_of(parts[0 if self.loop.backward else peeled]))
        shape[dim] *= self.loop.steps
        result = self.editor.shaped(call(aten.permute.default, made, ahead), shape)
        if peeled:
            others = parts[-peeled:] if self.loop.backward else parts[:peeled]
            pieces = [result, *others] if self.loop.backward else [*others, result]
            result = call(aten.cat.default, pieces, dim)
        joined.replace_all_uses_with(result)

    def _of(self, number: int) -> Node:
        """What a role makes at all steps."""
        if number not in self.made:
            role = self.loop.roles[number]
            made = self._call(role, [self._operand(own) for own in role.operands])
            _check_same(made, role.first, self.loop.steps)
            self.made[number] = made
        return self.made[number]

    def _operand(self, own: Operand) -> Node:
        match own:
            case Fixed():
                return own.node
            case Slices():
                return self._slices(own)
            case Made():
                return self._of(own.role)
            case Carried():
                return self.given[own]

    def _slices(self, own: Slices) -> Node:
        call, steps = self.editor.call, self.loop.steps
        first, step = own.first, own.step
        if self.loop.backward:
            first, step = first + step * (steps - 1), -step
        rank = own.base.meta["val"].dim()
        others = [d for d in range(rank) if d != own.dim]
        ahead = call(aten.permute.default, own.base, [own.dim, *others])
        least = first if step > 0 else first - steps + 1
        if (least, steps) != (0, shape_of(ahead)[0]):
            ahead = call(aten.slice.Tensor, ahead, 0, least, least + steps)
        if step < 0:
            ahead = call(prims.rev.default, ahead, [0])
        if own.kept:
            ahead = call(aten.unsqueeze.default, ahead, own.dim + 1)
        return ahead

    def _call(self, role: Role, operands: list[Node]) -> Node:
        node, shape = role.first, [self.loop.steps, *shape_of(role.first)]
        fixed = [isinstance(own, Fixed) for own in role.operands]
        name = name_of(node)
        if name in OF_ELEMENTS or torch.Tag.pointwise in node.target.tags:  # type: ignore[union-attr]
            rank = len(shape) - 1
            aligned = (
                x if same else self._with_rank(x, rank)
                for x, same in zip(operands, fixed, strict=True)
            )
            return self._again(node, aligned)
        if len(operands) != 1:
            raise Unsupported(f"a loop whose steps do {name}")
        (x,) = operands
        call, rank = self.editor.call, x.meta["val"].dim() - 1
        if is_view(node):
            return self.editor.shaped(x, shape)
        if name == "clone":
            return x
        if name == "permute":
            dims = [0, *(d % rank + 1 for d in argument(node, "dims"))]
            return call(aten.permute.default, x, dims)
        if name == "expand":
            return call(aten.expand.default, self._with_rank(x, len(shape) - 1), shape)
        if name in REDUCTIONS and argument(node, "dim"):  # an empty list stands for all
            dims = [d + 1 for d in reduced_dims(node)]
            return call(REDUCTIONS[name], x, dims, argument(node, "keepdim", False))
        raise Unsupported(f"a loop whose steps do {name}")

    def _with_rank(self, x: Node, rank: int) -> Node:
        """With ones between the steps and its own dimensions, as broadcasting has them in front."""
        steps, *own = shape_of(x)
        return self.editor.shaped(x, [steps, *[1] * (rank - len(own)), *own])

    def _again(self, node: Node, operands: Iterator[Node]) -> Node:
        """The same call of other operands."""

        def other(leaf: Any) -> Any:
            return next(operands) if isinstance(leaf, Node) else leaf

        args, kwargs = pytree.tree_map(other, (node.args, node.kwargs))
        made: Any = node.target
        return self.editor.call(made, *args, **kwargs)


def _check_same(made: Node, one: Node, steps: int) -> None:
    """Raises Unsupported unless ``made`` is of all steps what ``one`` is of one. A number of each step is a tensor of
    several dimensions then, so that dtypes meet differently; and a reduction into another dtype is not written so."""
    if dtype_of(made) != dtype_of(one) or tuple(shape_of(made)) != (steps, *shape_of(one)):
        raise Unsupported("a loop whose steps make another shape or dtype one by one than together")
