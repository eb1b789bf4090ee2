"""Recurrent layers among the tasks: LSTM, GRU, and plain ones with tanh or relu, recognised as one operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent_backend.codegen.ir.failure import Unsupported
from sandbox.operator_library import MAX_INPUTS
from sandbox.task.specs import contiguous_stride
from sandbox.task.task import Arg, InputRef, NodeRef, Task, TensorSpec

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""By kind: the sums from which a unit's next value is made."""
OPERATORS = {f"cuda_agent.{kind}.default": kind for kind in GATES}
OUTPUT, LAST_HIDDEN, LAST_CELL = range(3)
"""The operator's results."""
Strides = tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """An input of the task, and elements between neighbours of each dimension."""

    input: int
    steps: Strides


@dataclass(frozen=True)
class Weights:
    """Of one layer and direction, as inputs of the task."""

    inner: int
    hidden: int
    inner_bias: int | None
    hidden_bias: int | None


@dataclass(frozen=True)
class Recurrent:
    """``layers`` of one kind, each over the whole sequence, in one direction or both.

    source: steps by time, batch and feature. hidden, cell: by layer (both directions of one beside each other), batch
    and unit. weights: by layer and direction. results: by number, the position among the task's outputs and the steps,
    as ``source`` or as ``hidden`` has them.
    """

    kind: str
    length: int
    batch: int
    features: int
    units: int
    layers: int
    directions: int
    source: Operand
    hidden: Operand
    cell: Operand | None
    weights: tuple[tuple[Weights, ...], ...]
    results: tuple[tuple[int, tuple[int, Strides]], ...]

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def biased(self) -> bool:
        return self.weights[0][0].inner_bias is not None

    def result(self, number: int) -> tuple[int, Strides] | None:
        return dict(self.results).get(number)


def is_recurrent(task: Task) -> bool:
    return any(node.op in OPERATORS for node in task.nodes)


def recurrent_of(task: Task) -> Recurrent:
    """The recurrent layers that ``task`` is.

    Raises:
        Unsupported: it is more than that, or of a form that the kernels do not know, with the reason.
    """
    if len(task.nodes) != 1 or task.nodes[0].op not in OPERATORS:
        raise Unsupported("recurrent layers together with other operators")
    if len(task.inputs) > MAX_INPUTS:
        raise Unsupported(f"{len(task.inputs)} inputs; up to {MAX_INPUTS}")
    args, kind = task.nodes[0].args, OPERATORS[task.nodes[0].op]
    layers, both = _whole(args, "num_layers"), _truth(args, "bidirectional")
    batch_first, directions = _truth(args, "batch_first"), 1 + both
    source, hidden = _operand(task, args["x"], "x"), _operand(task, args["h"], "h")
    shape = task.inputs[source.input].shape
    if layers < 1 or min(shape) < 1:
        raise Unsupported("no layers, or nothing to go through")
    length, batch = (shape[1], shape[0]) if batch_first else shape[:2]
    units = task.inputs[hidden.input].shape[2]
    state = (layers * directions, batch, units)
    cell = _operand(task, args["c"], "c") if kind == "lstm" else None
    for operand in (hidden, cell):
        if operand and task.inputs[operand.input].shape != state:
            raise Unsupported(f"a state of shape {task.inputs[operand.input].shape}")
    return Recurrent(
        kind, length, batch, shape[2], units, layers, directions,
        Operand(source.input, _by_time(source.steps, batch_first)), hidden, cell,
        _weights(task, args, kind, (shape[2], units, layers, directions)),
        _results(task, kind, batch_first),
    )  # fmt: skip


def _weights(
    task: Task, args: Mapping[str, Arg], kind: str, sizes: tuple[int, int, int, int]
) -> tuple[tuple[Weights, ...], ...]:
    """By layer and direction; ``sizes`` are those of features, units, layers and directions."""
    features, units, layers, directions = sizes
    given, biased = args["weights"], _truth(args, "has_biases")
    each = 4 if biased else 2
    if not isinstance(given, tuple) or len(given) != each * layers * directions:
        raise Unsupported("projections, or weights that are not those of the layers")
    rows = GATES[kind] * units
    found = []
    for number in range(layers * directions):
        width = features if number < directions else directions * units
        shapes = ((rows, width), (rows, units), (rows,), (rows,))[:each]
        own = given[number * each : (number + 1) * each]
        inner, hidden, *biases = (_weight(task, *pair) for pair in zip(own, shapes, strict=True))
        inner_bias, hidden_bias = biases or (None, None)
        found.append(Weights(inner, hidden, inner_bias, hidden_bias))
    return tuple(tuple(found[i : i + directions]) for i in range(0, len(found), directions))


def _weight(task: Task, argument: Arg, shape: tuple[int, ...]) -> int:
    number, spec = _input(task, argument, "a weight")
    if spec.shape != shape:
        raise Unsupported(f"weights of shape {spec.shape} instead of {shape}: projections?")
    own = [(n, s, c) for n, s, c in zip(shape, spec.stride, contiguous_stride(shape), strict=True)]
    if any(s != c for n, s, c in own if n != 1):
        raise Unsupported("weights that are not contiguous")
    return number


def _results(
    task: Task, kind: str, batch_first: bool
) -> tuple[tuple[int, tuple[int, Strides]], ...]:
    found: dict[int, tuple[int, Strides]] = {}
    known = range(3 if kind == "lstm" else 2)
    for place, (output, spec) in enumerate(zip(task.outputs, task.output_specs, strict=True)):
        number = output.output if isinstance(output, NodeRef) else None
        if number not in known or number in found:
            raise Unsupported("an output that is no result of the layers, or one of them twice")
        assert number is not None
        steps = _steps(spec)
        found[number] = (place, _by_time(steps, batch_first) if number == OUTPUT else steps)
    return tuple(sorted(found.items()))


def _by_time(steps: Strides, batch_first: bool) -> Strides:
    return (steps[1], steps[0], steps[2]) if batch_first else steps


def _operand(task: Task, argument: Arg, name: str) -> Operand:
    number, spec = _input(task, argument, name)
    if len(spec.shape) != 3:
        raise Unsupported(f"{name} of {len(spec.shape)} dimensions")
    return Operand(number, _steps(spec))


def _steps(spec: TensorSpec) -> Strides:
    """Strides, 0 where there is nothing to step to."""
    return tuple(s if n != 1 else 0 for n, s in zip(spec.shape, spec.stride, strict=True))


def _input(task: Task, argument: Arg, name: str) -> tuple[int, TensorSpec]:
    if not isinstance(argument, InputRef):
        raise Unsupported(f"{name} that is not an input")
    spec = task.inputs[argument.index]
    if spec.dtype != "float32":
        raise Unsupported(f"recurrent layers in {spec.dtype}")
    return argument.index, spec


def _whole(args: Mapping[str, Arg], name: str) -> int:
    value = args[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unsupported(f"{name} that is not a number")
    return value


def _truth(args: Mapping[str, Arg], name: str) -> bool:
    value = args[name]
    if not isinstance(value, bool):
        raise Unsupported(f"{name} that is not a truth value")
    return value
