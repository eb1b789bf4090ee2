"""From a region of an FX graph to its task: the same computation gives the same text, however it is written down.

Values are hash-consed bottom-up (so equal subexpressions become one node), coloured by what they are computed from
and what they are used for, and numbered depth-first from the outputs in colour order. Inputs are numbered by first use.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node as FxNode

from cuda_agent_backend.graph.convolution_grad import MASK, needed
from sandbox.task.arguments import Arg, Device, DType, Layout, MemoryFormat
from sandbox.task.task import InputRef, Node, NodeRef, Ref, Task, TaskError, TensorSpec

COLOUR_ROUNDS = 3
"""Rounds of refinement: two regions of equal colours after these are taken for symmetric."""


@dataclass(frozen=True)
class NotATask:
    """A region that has no canonical form, and why."""

    reason: str


@dataclass(frozen=True)
class Canonical:
    """A task and how it lies in the graph: `inputs[i]` feeds input i, each of `outputs[j]` is output j."""

    task: Task
    inputs: tuple[FxNode, ...]
    outputs: tuple[tuple[FxNode, ...], ...]


@dataclass(frozen=True)
class _Value:
    """A hash-consed call: arguments in schema order, references by `_Leaf` and `_Use`."""

    op: str
    args: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _Leaf:
    number: int


@dataclass(frozen=True)
class _Use:
    value: int
    output: int | None = None


def tensor_spec(value: torch.Tensor) -> TensorSpec:
    """Metadata of a (fake) tensor. Raises `TaskError` on symbolic sizes."""
    shape, stride = tuple(value.shape), tuple(value.stride())
    if not all(type(number) is int for number in shape + stride):
        raise TaskError("symbolic sizes")
    return TensorSpec(str(value.dtype).removeprefix("torch."), shape, stride)


def canonical(
    nodes: Sequence[FxNode], outputs: Sequence[FxNode], target: str
) -> Canonical | NotATask:
    """The task of `nodes` (in any topological order) with the given outputs; everything else they read is an input."""
    try:
        return _Region(nodes, outputs, target).build()
    except TaskError as error:
        return NotATask(str(error))


def linear(
    nodes: Iterable[FxNode], inputs: Sequence[FxNode], outputs: Sequence[FxNode], target: str
) -> Task | NotATask:
    """The task of a whole graph with nodes and inputs in the order given: for replay, not for use as a key."""
    try:
        region = _Region((), (), target)
        region.consing = False
        for node in inputs:
            region.leaf(node)
        for node in nodes:
            region.add(node)
        return region.in_order(outputs)
    except TaskError as error:
        return NotATask(str(error))


class _Region:
    def __init__(self, nodes: Sequence[FxNode], outputs: Sequence[FxNode], target: str) -> None:
        self.target = target
        self.consing = True
        self.own = frozenset(nodes)
        self.leaves: list[FxNode] = []
        self.leaf_of: dict[FxNode, _Leaf] = {}
        self.values: list[_Value] = []
        self.known: dict[str, int] = {}
        self.result_of: dict[FxNode, _Use | _Leaf] = {}
        for node in nodes:
            self.add(node)
        self.by_result: dict[_Use, list[FxNode]] = {}
        for node in outputs:
            found = self.result_of[node]
            if isinstance(found, _Leaf):
                raise TaskError("an output is an input")
            self.by_result.setdefault(found, []).append(node)

    def leaf(self, node: FxNode) -> _Leaf:
        if node not in self.leaf_of:
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                raise TaskError(f"input {node.name} is not a tensor")
            self.leaf_of[node] = _Leaf(len(self.leaves))
            self.leaves.append(node)
        return self.leaf_of[node]

    def add(self, node: FxNode) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            found = self._reference(source)
            if isinstance(found, _Leaf) or found.output is not None or not isinstance(index, int):
                raise TaskError(f"{node.name} selects from something that is not an operator")
            self.result_of[node] = _Use(found.value, index)
            return
        value = _Value(op_name(node), self._arguments(node))
        # Text, because 2 == 2.0 == True as keys but not as arguments.
        name = repr(value) if self.consing else node.name
        number = self.known.setdefault(name, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        self.result_of[node] = _Use(number)

    def _reference(self, node: Any) -> _Use | _Leaf:
        return self.result_of[node] if node in self.result_of else self.leaf(node)

    def _arguments(self, node: FxNode) -> tuple[tuple[str, Any], ...]:
        assert isinstance(node.target, torch._ops.OpOverload)
        schema = node.target._schema.arguments
        given = dict(zip((argument.name for argument in schema), node.args, strict=False))
        given |= node.kwargs
        made = []
        for argument in schema:
            if argument.name not in given:
                continue
            value = self._encode(given[argument.name], argument)
            if argument.name == MASK and self.own:
                value = tuple(needed(value, node, self.own))
            default = argument.has_default_value() and argument.default_value
            if argument.has_default_value() and _same(value, self._encode(default, argument)):
                continue
            if (argument.name, value) in (("pin_memory", False), ("layout", Layout("strided"))):
                continue
            made.append((argument.name, value))
        return tuple(made)

    def _encode(self, value: Any, argument: Any) -> Any:
        if isinstance(value, FxNode):
            return self._reference(value)
        if isinstance(value, list | tuple):
            return tuple(self._encode(item, argument) for item in value)
        if isinstance(value, int) and not isinstance(value, bool) and str(argument.type) == "float":
            return float(value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        match value:
            case torch.dtype():
                return DType(str(value).removeprefix("torch."))
            case torch.device():
                if value.type != self.target:
                    raise TaskError(f"device {value.type} in a task for {self.target}")
                return Device()
            case torch.memory_format():
                return MemoryFormat(str(value).removeprefix("torch."))
            case torch.layout():
                return Layout(str(value).removeprefix("torch."))
        raise TaskError(
            "symbolic sizes"
            if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
            else f"argument {argument.name} is a {type(value).__name__}"
        )

    def build(self) -> Canonical:
        colours = self._colours()
        ordered = sorted(self.by_result, key=lambda use: (colours[use.value], use.output or 0))
        numbered: dict[int, int] = {}
        leaves: dict[int, int] = {}
        order: list[int] = []
        for use in ordered:
            self._number(use.value, numbered, leaves, order)
        made = tuple(
            Node(
                self.values[value].op,
                {name: _final(arg, numbered, leaves) for name, arg in self.values[value].args},
            )
            for value in order
        )
        inputs = tuple(self.leaves[number] for number in leaves)
        groups = tuple(tuple(self.by_result[use]) for use in ordered)
        task = Task(
            target=self.target,
            inputs=tuple(tensor_spec(node.meta["val"]) for node in inputs),
            nodes=made,
            outputs=tuple(NodeRef(numbered[use.value], use.output) for use in ordered),
            output_specs=tuple(tensor_spec(group[0].meta["val"]) for group in groups),
        )
        return Canonical(task, inputs, groups)

    def in_order(self, outputs: Sequence[FxNode]) -> Task:
        same = {number: number for number in range(max(len(self.values), len(self.leaves)))}
        references: list[Ref] = [_final(self._reference(node), same, same) for node in outputs]  # type: ignore[misc]
        return Task(
            target=self.target,
            inputs=tuple(tensor_spec(node.meta["val"]) for node in self.leaves),
            nodes=tuple(
                Node(value.op, {name: _final(arg, same, same) for name, arg in value.args})
                for value in self.values
            ),
            outputs=tuple(references),
            output_specs=tuple(tensor_spec(node.meta["val"]) for node in outputs),
        )

    def _number(
        self, start: int, numbered: dict[int, int], leaves: dict[int, int], order: list[int]
    ) -> None:
        """Depth-first, arguments in schema order; iterative, because regions may be deep."""
        stack = [(start, _references(self.values[start]))]
        while stack:
            value, waiting = stack[-1]
            if waiting:
                found = waiting.pop(0)
                if isinstance(found, _Leaf):
                    leaves.setdefault(found.number, len(leaves))
                elif found.value not in numbered:
                    stack.append((found.value, _references(self.values[found.value])))
                continue
            stack.pop()
            if value not in numbered:
                numbered[value] = len(order)
                order.append(value)

    def _colours(self) -> list[str]:
        """A name-free colour for each value: from its operands (up), then from its uses (down), refined."""
        leaf = [_hash("leaf", tensor_spec(node.meta["val"])) for node in self.leaves]
        up: list[str] = []
        down: list[str] = []
        wanted: dict[int, list[str]] = {}
        for result in self.by_result:
            wanted.setdefault(result.value, []).append(str(result.output))
        for _ in range(COLOUR_ROUNDS):
            up = []
            for value in self.values:
                up.append(_hash(value.op, _coloured(value.args, leaf, up)))
            uses: list[list[str]] = [[] for _ in self.values]
            leaf_uses: list[list[str]] = [[] for _ in self.leaves]
            down = [""] * len(self.values)
            for number in reversed(range(len(self.values))):
                down[number] = _hash(sorted(wanted.get(number, ())), *sorted(uses[number]))
                for place, found in enumerate(_references(self.values[number])):
                    use = _hash(up[number], down[number], place, getattr(found, "output", None))
                    if isinstance(found, _Leaf):
                        leaf_uses[found.number].append(use)
                    else:
                        uses[found.value].append(use)
            leaf = [_hash(old, *sorted(found)) for old, found in zip(leaf, leaf_uses, strict=True)]
        return [_hash(a, b) for a, b in zip(up, down, strict=True)]


def op_name(node: FxNode) -> str:
    """ "aten.add.Tensor" of a call; raises `TaskError` for anything but an ATen or prims operator."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        raise TaskError(f"{node.target} is not an operator")
    return str(node.target)


def graph_digest(graph: torch.fx.Graph) -> str:
    """A stable key of a whole graph in its present order, whatever its operators: 64 hex digits."""
    number = {node: position for position, node in enumerate(graph.nodes)}
    hasher = hashlib.sha256()
    for node in graph.nodes:
        name = "" if node.op in ("placeholder", "output") else str(node.target)
        args = _numbered((node.args, dict(node.kwargs)), number)
        value = "" if node.op == "output" else _described(node.meta.get("val"))
        hasher.update(f"{node.op}|{name}|{args}|{value}\n".encode())
    return hasher.hexdigest()


def _numbered(arg: Any, number: dict[FxNode, int]) -> str:
    if isinstance(arg, FxNode):
        return f"%{number[arg]}"
    if isinstance(arg, list | tuple):
        return "(" + ",".join(_numbered(item, number) for item in arg) + ")"
    if isinstance(arg, dict):
        return "{" + ",".join(f"{k}:{_numbered(v, number)}" for k, v in arg.items()) + "}"
    return f"{type(arg).__name__}:{arg!r}"


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{tuple(value.stride())}{value.device.type}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_described(item) for item in value) + "]"
    return type(value).__name__


def _references(value: _Value) -> list[_Use | _Leaf]:
    return [found for _, arg in value.args for found in _inside(arg)]


def _inside(arg: Any) -> list[_Use | _Leaf]:
    if isinstance(arg, _Use | _Leaf):
        return [arg]
    if isinstance(arg, tuple):
        return [found for item in arg for found in _inside(item)]
    return []


def _coloured(arg: Any, leaf: list[str], up: list[str]) -> str:
    if isinstance(arg, _Leaf):
        return leaf[arg.number]
    if isinstance(arg, _Use):
        return f"{up[arg.value]}.{arg.output}"
    if isinstance(arg, tuple):
        return "(" + ",".join(_coloured(item, leaf, up) for item in arg) + ")"
    return f"{type(arg).__name__}:{arg.hex() if isinstance(arg, float) else arg!r}"


def _final(arg: Any, numbered: dict[int, int], leaves: dict[int, int]) -> Arg:
    if isinstance(arg, _Leaf):
        return InputRef(leaves[arg.number])
    if isinstance(arg, _Use):
        return NodeRef(numbered[arg.value], arg.output)
    if isinstance(arg, tuple):
        return tuple(_final(item, numbered, leaves) for item in arg)
    result: Arg = arg
    return result


def _same(left: Any, right: Any) -> bool:
    """Equal in value and type: True is not 1, 1 is not 1.0, and NaN equals itself."""
    return type(left) is type(right) and repr(left) == repr(right)


def _hash(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
