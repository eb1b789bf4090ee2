"""The float64 oracle slice by slice (see `slice_plan`): no output of it is ever whole where it can be cut.

In float64, nothing but the order of a sum differs from the whole at once.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.cut_rules import Rule, Span
from sandbox.accuracy.oracle import call_wide, widen
from sandbox.accuracy.pieces import Cut, Piece
from sandbox.accuracy.slice_plan import Key, Pass, Planner, Step

if TYPE_CHECKING:
    import torch

Values = dict[Key, Any]


class SlicedOracle:
    """The outputs of a task's module (`build_graph`) in float64, piece by piece.

    budget: bytes that the values of one slice may take together. other: the same graph `written_out`, if that is to be
    asked as well. without: outputs, by number, that are not wanted.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        budget: int,
        other: torch.fx.GraphModule | None = None,
        without: Collection[int] = (),
    ) -> None:
        self.planner = Planner(module.graph, budget, frozenset(without))
        self.dims = self.planner.dims()
        self._other = None if other is None else Planner(other.graph, budget, frozenset(without))
        self.narrow: set[str] = set()
        """Names of operators that have no kernel for float64, once they were run."""

    @property
    def held_bytes(self) -> int:
        """The most that is held at any time beside the inputs, without what is `written_out`."""
        return self.planner.held_bytes(self.dims)

    def pieces(self, inputs: Sequence[torch.Tensor], written_out: bool = False) -> Iterator[Piece]:
        """All outputs. written_out: with what the other graph makes of them, if there is one.

        Raises whatever torch raises, and torch.OutOfMemoryError.
        """
        groups = self.planner.groups(self.dims)
        others = (
            self._other.groups(self.dims) if self._other and written_out else [None] * len(groups)
        )
        for group, other in zip(groups, others, strict=True):
            planned = self.planner.plan([key for _, key in group])
            step = self.planner.at_once(planned)
            own = _Run(self.planner, inputs, self.narrow).slices(planned, step)
            second: Iterator[tuple[int, int, Values]] | None = None
            if other is not None and self._other is not None:
                second_plan = self._other.plan([key for _, key in other])
                second = _Run(self._other, inputs, set()).slices(second_plan, step)
            for start, stop, values in own:
                beside = next(second)[2] if second is not None else None
                for place, (number, key) in enumerate(group):
                    cut = None if key[1] is None else Cut(key[1].dim, start, stop)
                    twin = beside[other[place][1]] if beside is not None and other else None
                    yield Piece(number, values[key], twin, cut)


class _Run:
    """Computes passes on inputs."""

    def __init__(self, planner: Planner, inputs: Sequence[torch.Tensor], narrow: set[str]) -> None:
        self.planner, self.narrow = planner, narrow
        given = planner.graph.find_nodes(op="placeholder")
        self.inputs = dict(zip(given, inputs, strict=True))

    def slices(self, planned: Pass, at_once: int) -> Iterator[tuple[int, int, Values]]:
        """The values that a pass was planned for, by slice: its first element, the one behind its last, and values.
        One slice, of nothing, where all are whole."""
        import torch

        with torch.no_grad():
            wholes = self._wholes(planned)
        if not planned.count:
            yield 0, 0, wholes
            return
        for start in range(0, planned.count, at_once):
            stop = min(start + at_once, planned.count)
            with torch.no_grad():
                values = dict(wholes)
                for step in planned.sliced:
                    values[step.key] = self._part(step, values, start, stop)
                    _drop(values, step)
            yield start, stop, values
            values.clear()  # whoever asked may still have it, while the next slice is computed

    def _wholes(self, planned: Pass) -> Values:
        values: Values = {}
        for node, source in planned.gathered:
            values[node, None] = self._gather(node, source)
        for step in planned.whole:
            node = step.key[0]
            if node.op == "placeholder":
                values[step.key] = widen(self.inputs[node])
            else:
                values[step.key] = self._call(node, None, values, (node.args, node.kwargs))
            _drop(values, step)
        return values

    def _gather(self, node: torch.fx.Node, source: Key) -> Any:
        """A reduction of all of its operand, from slices of that."""
        planned = self.planner.plan([source])
        if source[0] is node:
            return self._collect(planned, source)
        found: Any = None
        for start, stop, values in self.slices(planned, self.planner.at_once(planned)):
            operand: Values = {(source[0], None): values[source]}
            part = self._call(node, None, operand, (node.args, node.kwargs))
            found = _combined(node, found, part, (stop - start) / planned.count)
            del operand  # the next slice is computed in its memory
        return found

    def _collect(self, planned: Pass, source: Key) -> Any:
        """A value from its own parts."""
        import torch

        step, span = self.planner.at_once(planned), source[1]
        assert span is not None
        parts = [values[source] for _, _, values in self.slices(planned, step)]
        return torch.cat(parts, span.dim)

    def _part(self, step: Step, values: Values, start: int, stop: int) -> Any:
        node, span = step.key
        assert span is not None
        if node.op == "placeholder":
            return widen(_narrowed(self.inputs[node], span, start, stop))
        if step.rule is None:
            return _narrowed(values[node, None], span, start, stop)
        sized = _sized(node, step.rule, (stop - start) * span.unit)
        return self._call(node, step.rule, values, sized)

    def _call(
        self, node: torch.fx.Node, rule: Rule | None, values: Values, arguments: tuple[Any, Any]
    ) -> Any:
        def value_of(operand: torch.fx.Node) -> Any:
            return values[operand, rule.needs[operand] if rule else None]

        if node.target is operator.getitem:
            source, place = arguments[0]
            return value_of(source)[place]
        return call_wide(node, arguments, value_of, self.narrow)


def _narrowed(value: torch.Tensor, span: Span, start: int, stop: int) -> torch.Tensor:
    return value.narrow(span.dim, start * span.unit, (stop - start) * span.unit)


def _drop(values: Values, step: Step) -> None:
    for key in step.dies:
        values.pop(key, None)


def _sized(node: torch.fx.Node, rule: Rule, size: int) -> tuple[Any, Any]:
    """The node's arguments, with the size of the part where they name the size of the whole."""
    if rule.sized is None:
        return node.args, node.kwargs
    place, index = rule.sized
    sizes = list(node.args[place])  # type: ignore[arg-type]
    sizes[index] = size
    return (*node.args[:place], sizes, *node.args[place + 1 :]), node.kwargs


def _combined(node: torch.fx.Node, found: Any, part: Any, share: float) -> Any:
    """What a reduction makes of two slices. share: the part of all elements that the second has."""
    import torch

    target: Any = node.target
    name = str(target._schema.name).partition("::")[2]
    if name == "mean":
        part = part * share
    if found is None:
        return part
    if name in ("amax", "amin"):
        return (torch.maximum if name == "amax" else torch.minimum)(found, part)
    if name in ("any", "all"):
        return found | part if name == "any" else found & part
    return found + part
