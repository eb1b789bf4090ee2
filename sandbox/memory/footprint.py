"""How many bytes of a device each phase of a search holds for a task: from its shapes and dtypes, before it begins.

What a process holds for itself, its context and its libraries, is no part of these: the driver counts it as used before
a phase begins. `CONTEXT_BYTES` is what it comes to.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from sandbox.task.specs import TensorSpec

if TYPE_CHECKING:
    import torch

    from sandbox.accuracy.sliced_oracle import SlicedOracle
    from sandbox.task.task import Task

Phase = Literal["baselines", "profile", "check", "race", "acceptance"]
PHASES: tuple[Phase, ...] = ("baselines", "profile", "check", "race", "acceptance")

CONTEXT_BYTES = 750 << 20
"""Of one process on a device: context, kernels of torch's that are loaded, the buffer that flushes the cache. Idle on
an H200, a worker holds 732 to 752 MiB and the judge 708."""
CONTEXTS = 4
"""Processes of one search: the judge's and its three workers'."""
STEP_BYTES = 256 << 20
"""What a comparison, a fingerprint or a draw works out beside what it looks at, at most."""
MOST_TIMES, MORE_BYTES = 2.5, 2 << 30
"""The contract: no phase holds more than so many times a task's inputs and outputs, and so many bytes more, unless
eager mode does by itself (see `Footprint.allowed`)."""
LEAST_SLICE, MOST_SLICE, SLICE_SHARE = 64 << 20, 1 << 30, 1 / 4
FRUGAL_BYTES = 256 << 20
"""Inputs and outputs from which a search on a GPU is sparing of its memory, and draws inputs more often for it."""
KEPT_BYTES, KEPT_SHARE = 1 << 29, 1 / 128
"""Inputs and expected values of the quick check are kept between candidates up to this size, or, where that is more, on
cuda up to this share of the device's memory."""
TIMED_SETS, KEPT_RUNS = 3, 4
"""Of a search that is not: input sets of each worker, and outputs of one draw that are compared together."""

_VIEWS = frozenset(
    (
        "view", "_unsafe_view", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "select", "slice",
        "alias", "detach", "as_strided", "split", "split_with_sizes", "unbind",
    )
)  # fmt: skip


def bytes_of(specs: Iterable[TensorSpec]) -> int:
    """Of tensors, from the first to the last element of each."""
    return sum(spec.extent * spec.itemsize for spec in specs)


def check_bytes(task: Task) -> int:
    """What one draw of a check may keep: inputs, and the outputs of eager mode and of the oracle."""
    return bytes_of(task.inputs) + 4 * bytes_of(task.output_specs)


@cache
def kept_bytes(target: str, share: float = KEPT_SHARE) -> int:
    """How much of a task may be kept between candidates."""
    import torch

    if target != "cuda" or not torch.cuda.is_available():
        return KEPT_BYTES
    memory = torch.cuda.get_device_properties(0).total_memory
    return max(KEPT_BYTES, int(memory * share))


def slice_bytes(moved: int) -> int:
    """What the float64 oracle's values of one slice may take, for a task of so many bytes of inputs and outputs."""
    return int(min(max(moved * SLICE_SHARE, LEAST_SLICE), MOST_SLICE))


@dataclass(frozen=True)
class Footprint:
    """What is held for a task, in bytes. eager: beside the inputs while it runs in eager mode, its outputs included.

    oracle: beside the inputs while the oracle is computed and compared, in slices in a frugal session. temporaries: a
    candidate's own.
    """

    inputs: int
    outputs: int
    eager: int
    oracle: int
    frugal: bool
    temporaries: int = 0

    @property
    def moved(self) -> int:
        """Inputs and outputs."""
        return self.inputs + self.outputs

    @property
    def allowed(self) -> int:
        """The most that a phase may hold: by the contract, or two processes with what eager mode itself takes."""
        least = MOST_TIMES * self.moved + MORE_BYTES
        return int(max(least, 2 * self.moved + (self.eager - self.outputs) + MORE_BYTES))

    def of(self, phase: Phase) -> int:
        """Bytes held at most by all processes of a search during a phase, without contexts."""
        return self._frugal(phase) if self.frugal else self._plain(phase)

    @property
    def _baseline(self) -> int:
        """The baseline's process: one input set, and eager mode or Inductor's outputs."""
        return self.inputs + max(self.eager, self.outputs)

    @property
    def _candidate(self) -> int:
        """A candidate's process: inputs, outputs, and its temporaries."""
        return self.inputs + self.outputs + self.temporaries

    @property
    def _judge(self) -> int:
        """The judge's own while it compares: inputs, eager's outputs, and the oracle slice by slice."""
        return self.inputs + max(self.eager, self.outputs + self.oracle + STEP_BYTES)

    @property
    def _doubt(self) -> int:
        """The judge's alone, while it looks at eager on inputs nearby."""
        again = max(self.eager, self.outputs + self.oracle + STEP_BYTES)
        return self.inputs + self.outputs + again

    def _frugal(self, phase: Phase) -> int:
        check = max(self._candidate + self._judge, self._doubt)
        match phase:
            case "baselines":  # the judge has its inputs, and draws
                return self._baseline + self.inputs + STEP_BYTES
            case "check":
                return check
            case "profile":
                return max(self._baseline + self._candidate, check)
            case "race":  # with the check before it
                return max(self._baseline + self._candidate, check)
            case "acceptance":
                # Random inputs and real ones; outputs of the graph with kernels, and of eager or of plain Inductor.
                more = max(self.oracle + STEP_BYTES, self.eager - self.outputs)
                return 2 * self.moved + more

    def _plain(self, phase: Phase) -> int:
        sets, runs = TIMED_SETS * self.inputs, KEPT_RUNS * self.outputs
        worker = sets + self.inputs + 2 * self.outputs + self.temporaries
        judge = 2 * self.inputs + self.eager + self.oracle + runs + STEP_BYTES
        match phase:
            case "baselines":
                return sets + self.eager + sets
            case "check" | "profile":
                return sets + self.eager + worker + sets + judge
            case "race":
                return sets + self.eager + 2 * worker + judge
            case "acceptance":
                return 2 * self.inputs + 6 * self.outputs + self.eager + self.oracle


def footprint(
    task: Task,
    module: torch.fx.GraphModule,
    sliced: SlicedOracle | None,
    frugal: bool,
    temporaries: Sequence[TensorSpec] = (),
) -> Footprint:
    """Of a task, whose graph is `module`. sliced: what computes its oracle in slices, None where it is whole."""
    inputs = bytes_of(task.inputs)
    whole = widened(task.inputs) + peak_bytes(module.graph, wide=True)
    return Footprint(
        inputs=inputs,
        outputs=bytes_of(task.output_specs),
        eager=peak_bytes(module.graph),
        oracle=whole if sliced is None else sliced.held_bytes,
        frugal=frugal,
        temporaries=bytes_of(temporaries),
    )


def widened(specs: Iterable[TensorSpec]) -> int:
    """Copies in float64 of those that are of another floating point."""
    return sum(8 * s.numel for s in specs if "float" in s.dtype and s.dtype != "float64")


def peak_bytes(graph: torch.fx.Graph, wide: bool = False) -> int:
    """What a graph's results take at most while it runs, its outputs included and its inputs not; views take nothing.

    A result goes once nothing reads it or a view of it any more. wide: with floating point in float64.
    """
    nodes = list(graph.nodes)
    base: dict[Any, Any] = {}
    last: dict[Any, int] = {}
    for at, node in enumerate(nodes):
        read = [operand for operand in node.all_input_nodes if operand in base]
        base[node] = base[read[0]] if read and _is_view(node) else node
        for one in (node, *read):
            last[base[one]] = at
    held = most = 0
    ends: dict[int, list[Any]] = {}
    for one, at in last.items():
        ends.setdefault(at, []).append(one)
    for at, node in enumerate(nodes):
        if base[node] is node and node.op == "call_function":
            held += _bytes(node, wide)
            most = max(most, held)
        gone = [one for one in ends.get(at, ()) if one.op == "call_function"]
        held -= sum(_bytes(one, wide) for one in gone)
    return most


def _is_view(node: torch.fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and str(schema.name).partition("::")[2] in _VIEWS


def _bytes(node: torch.fx.Node, wide: bool) -> int:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    tensors: list[Any] = [v for v in values if hasattr(v, "dtype")]
    sizes = [8 if wide and v.is_floating_point() else v.itemsize for v in tensors]
    return sum(math.prod(v.shape) * size for v, size in zip(tensors, sizes, strict=True))
