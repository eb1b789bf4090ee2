"""How a task's graph is computed slice by slice: what of it can be, what is whole, and how much memory that takes.

Each output is cut along one of its dimensions, and by the rules of `cut_rules` so is what it is made from. What a rule
needs whole is computed once, before the slices. Sums, means and extrema over what is cut are gathered from slices, in a
pass of their own. Pure: of a graph's shapes and dtypes alone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.cut_rules import Rule, Span, argument, rule_of, shape_of

if TYPE_CHECKING:
    import torch

MOST_DIMS = 4
"""Of an output, or of what is summed, that are tried."""
WHOLE_SHARE = 8
"""An output, or what is summed, is whole where it takes this part of a slice's bytes or less."""
_GATHERED = frozenset(("sum", "mean", "amax", "amin", "any", "all"))
_VIEWS = frozenset(
    (
        "view", "_unsafe_view", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "select", "slice",
        "alias", "detach", "getitem",
    )
)  # fmt: skip

LEAST_PART = 16
"""Of the budget a slice has at least this part, whatever is whole beside it."""

Key = tuple["torch.fx.Node", Span | None]
"""A node's value: whole, or the part that a slice needs."""


@dataclass(frozen=True)
class Step:
    """Makes a value. rule: from what; None where it is an input, or a part of its whole. dies: what nothing reads any
    more after it."""

    key: Key
    rule: Rule | None
    dies: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Pass:
    """Values that are computed together. whole: once, in this order. sliced: for each slice; there are `count`, of one
    element each, or more at a time. gathered: reductions, and small values that are put together of parts of their own,
    which come before all, each in a pass of its own.

    whole_bytes: held at most by the first, kept_bytes: what of those the slices read. slice_bytes: of one slice.
    """

    whole: tuple[Step, ...]
    sliced: tuple[Step, ...]
    gathered: tuple[tuple[torch.fx.Node, Key], ...]
    count: int
    whole_bytes: int
    kept_bytes: int
    slice_bytes: int


@dataclass
class Planner:
    """Plans passes over a graph. budget: bytes that the values of one slice may take together. without: outputs, by
    number, that are left out."""

    graph: torch.fx.Graph
    budget: int
    without: frozenset[int] = frozenset()
    _known: dict[tuple[Key, ...], Pass] = field(default_factory=dict)
    _collected: dict[Any, Key | None] = field(default_factory=dict)

    @property
    def outputs(self) -> tuple[torch.fx.Node, ...]:
        """The graph's, in order."""
        return tuple(self.graph.find_nodes(op="output")[0].args[0])

    def dims(self) -> list[int | None]:
        """Along which dimension each output is best cut; None where it is whole, or left out."""
        return [
            None if number in self.without else self._best_dim(node, range(len(shape_of(node))))
            for number, node in enumerate(self.outputs)
        ]

    def groups(self, dims: Sequence[int | None]) -> list[list[tuple[int, Key]]]:
        """Outputs, by number, that are computed in one pass: those with as many slices."""
        found: dict[int, list[tuple[int, Key]]] = {}
        for number, (node, dim) in enumerate(zip(self.outputs, dims, strict=True)):
            if number in self.without:
                continue
            count = 0 if dim is None else shape_of(node)[dim]
            key = node, None if dim is None else Span(dim, 1)
            found.setdefault(count, []).append((number, key))
        return list(found.values())

    def held_bytes(self, dims: Sequence[int | None]) -> int:
        """The most that is held at any time beside the graph's inputs."""
        groups = self.groups(dims)
        return max(
            (self._held(self.plan([key for _, key in group])) for group in groups), default=0
        )

    def at_once(self, planned: Pass) -> int:
        """Elements along what is cut that a slice may have: fewer beside much that is whole."""
        room = max(self.budget - planned.kept_bytes, self.budget // LEAST_PART)
        return max(1, min(planned.count, room // max(1, planned.slice_bytes)))

    def plan(self, wanted: Sequence[Key]) -> Pass:
        """The pass that computes these values; all are whole, or all have as many slices."""
        place = tuple(wanted)
        if place not in self._known:
            self._known[place] = self._plan(place)
        return self._known[place]

    def _plan(self, wanted: Sequence[Key]) -> Pass:
        asked: dict[Any, dict[Span | None, None]] = {}
        for node, span in wanted:
            asked.setdefault(node, {})[span] = None
        whole, sliced, gathered = list[Step](), list[Step](), list[tuple[Any, Key]]()
        for node in reversed(self.graph.nodes):
            for span in [s for s in asked.get(node, {}) if s is not None]:
                rule = None if node.op == "placeholder" else _rule(node, span)
                needs = rule.needs if rule else {} if node.op == "placeholder" else {node: None}
                sliced.append(Step((node, span), rule))
                for operand, need in needs.items():
                    asked.setdefault(operand, {})[need] = None
            if None in asked.get(node, {}):
                source = self._gathered_from(node)
                if source is not None:
                    gathered.append((node, source))
                    continue
                whole.append(Step((node, None), None))
                for operand in node.all_input_nodes:
                    asked.setdefault(operand, {})[None] = None
        count = max((shape_of(n)[s.dim] for n, s in wanted if s is not None), default=0)
        return _timed(whole[::-1], sliced[::-1], gathered[::-1], count, wanted)

    def _gathered_from(self, node: torch.fx.Node) -> Key | None:
        """The part of its operand of which a reduction is gathered; None where it is computed at once."""
        if _name(node) not in _GATHERED or len(node.all_input_nodes) != 1:
            return self._collected_from(node)
        operand = node.all_input_nodes[0]
        if _bytes(operand) * WHOLE_SHARE <= self.budget:
            return None
        rank = len(shape_of(operand))
        given = argument(node, "dim")
        given = list(range(rank)) if given in (None, []) else given
        dims = [d % rank for d in (given if isinstance(given, list | tuple) else [given])]
        best = self._best_dim(operand, sorted(dims))
        return None if best is None else (operand, Span(best, 1))

    def _collected_from(self, node: torch.fx.Node) -> Key | None:
        """The part of a small value that is made from large ones, of which parts it is put together."""
        if node not in self._collected:
            self._collected[node] = None  # within its own plan it is whole
            source: Any = node.args[0] if node.target is operator.getitem else node
            large = any(_bytes(n) * WHOLE_SHARE > self.budget for n in source.all_input_nodes)
            value = node.meta["val"]
            small = hasattr(value, "dtype") and _bytes(node) * WHOLE_SHARE <= self.budget
            if node.op == "call_function" and small and large:
                every = range(len(shape_of(node)))
                dims = outermost_first(node, [d for d in every if _rule(node, Span(d, 1))])
                plans = {d: self._held(self._plan([(node, Span(d, 1))])) for d in dims}
                best = self._first_that_fits(plans)
                if best is not None and plans[best] < self._held(self._plan([(node, None)])):
                    self._collected[node] = node, Span(best, 1)
            self._known.clear()  # plans that were made meanwhile
        return self._collected[node]

    def _best_dim(self, node: torch.fx.Node, dims: Sequence[int]) -> int | None:
        """The outermost dimension whose slices fit the budget, or that by which least is held; None where that is more
        than without one."""

        def held(dim: int | None) -> int:
            return self._held(self.plan([(node, None if dim is None else Span(dim, 1))]))

        whole = held(None)
        if whole <= self.budget:
            return None
        plans = {dim: held(dim) for dim in outermost_first(node, dims)}
        best = self._first_that_fits(plans)
        return best if best is not None and plans[best] <= whole else None

    def _first_that_fits(self, plans: Mapping[int, int]) -> int | None:
        """Of dimensions in their order with what is held by each, the first that fits the budget: slices along an outer
        one lie together in memory. Where none fits, the one by which least is held; None without any."""
        fits = (dim for dim, held in plans.items() if held <= self.budget)
        return next(fits, min(plans, key=lambda dim: plans[dim], default=None))

    def _held(self, planned: Pass) -> int:
        before = [self._held(self.plan([source])) for _, source in planned.gathered]
        slices = planned.kept_bytes + planned.slice_bytes * self.at_once(planned)
        return max(planned.whole_bytes, slices, *before, 0)


def outermost_first(node: torch.fx.Node, dims: Iterable[int]) -> list[int]:
    """Of a value's dimensions those that are tried, as they lie in memory."""
    shape, strides = shape_of(node), node.meta["val"].stride()
    cut = [dim for dim in dims if shape[dim] > 1]
    return sorted(cut, key=lambda dim: -strides[dim])[:MOST_DIMS]


def _rule(node: torch.fx.Node, span: Span) -> Rule | None:
    if node.target is operator.getitem:
        source: Any = node.args[0]
        parts = _name(source) in ("split", "split_with_sizes")
        mine, whole = shape_of(node), shape_of(source)
        same = mine[span.dim] == whole[span.dim] if parts else mine == whole
        return Rule({source: span}) if same and (not parts or rule_of(source, span)) else None
    return rule_of(node, span)


def _timed(
    whole: list[Step],
    sliced: list[Step],
    gathered: list[tuple[torch.fx.Node, Key]],
    count: int,
    wanted: Sequence[Key],
) -> Pass:
    """The pass of these steps, with what dies when, and the bytes that it holds."""
    reads = [key for step in sliced for key in _reads(step) if key[1] is None]
    first, most, kept = _with_ends(whole, {*wanted, *reads})
    then, slice_bytes, _ = _with_ends(sliced, {*wanted})
    return Pass(tuple(first), tuple(then), tuple(gathered), count, most, kept, slice_bytes)


def _with_ends(steps: list[Step], kept: set[Key]) -> tuple[list[Step], int, int]:
    """The steps with what dies after each, the bytes held at their peak, and those of what is kept to the end."""
    base: dict[Key, Key] = {}
    last: dict[Key, int] = {}
    for at, step in enumerate(steps):
        reads = [key for key in _reads(step) if key in last]
        view = _name(step.key[0]) in _VIEWS and step.key[0].op != "placeholder" and reads
        base[step.key] = base[reads[0]] if view else step.key
        for key in (step.key, *reads):
            last[key] = last[base[key]] = at
    for key in kept & set(last):
        last[key] = last[base[key]] = len(steps)
    ends: dict[int, list[Key]] = {}
    for key, at in last.items():
        ends.setdefault(at, []).append(key)
    held = most = 0
    found = []
    for at, step in enumerate(steps):
        held += 0 if base[step.key] != step.key else _part_bytes(step.key)
        most = max(most, held)
        dies = tuple(ends.get(at, ()))
        held -= sum(_part_bytes(key) for key in dies if base[key] == key)
        found.append(Step(step.key, step.rule, dies))
    return found, most, held


def _reads(step: Step) -> Iterator[Key]:
    node, span = step.key
    if span is None:
        return iter([(operand, None) for operand in node.all_input_nodes])
    if step.rule is None:
        return iter([] if node.op == "placeholder" else [(node, None)])
    return iter(list(step.rule.needs.items()))


def _name(node: torch.fx.Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    schema = getattr(node.target, "_schema", None)
    return str(schema.name).partition("::")[2] if schema is not None else ""


def _part_bytes(key: Key) -> int:
    """Bytes of a value, for a slice of one element where it is a part."""
    node, span = key
    if span is None:
        return _bytes(node)
    return -(-_bytes(node) * span.unit // max(1, shape_of(node)[span.dim]))


@cache
def _bytes(node: torch.fx.Node) -> int:
    """Of a whole value as the oracle has it. What is an input in such a dtype already is no copy."""
    value = node.meta["val"]
    tensors = [
        v for v in (value if isinstance(value, tuple | list) else [value]) if hasattr(v, "dtype")
    ]
    if node.op == "placeholder" and (not value.is_floating_point() or value.itemsize == 8):
        return 0
    sizes = [8 if v.is_floating_point() else v.itemsize for v in tensors]
    return sum(math.prod(v.shape) * size for v, size in zip(tensors, sizes, strict=True))
