"""The parts of a launch plan: buffers, launches and their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sandbox.plan.expressions import Expression, evaluate
from sandbox.plan.library_calls import LibraryCall
from sandbox.task.specs import TensorSpec

Target = Literal["cpu", "cuda"]
Kind = Literal["input", "output", "temporary", "prepacked"]
KIND_ORDER = ("input", "output", "temporary", "prepacked")

Triple = tuple[Expression, Expression, Expression]
MAX_MESSAGE = 600
ONES: Triple = (1, 1, 1)


@dataclass(frozen=True)
class Buffer:
    """One tensor of the plan. Temporaries are one-dimensional and contiguous."""

    name: str
    kind: Kind
    spec: TensorSpec


@dataclass(frozen=True)
class Scalar:
    """A constant kernel argument of type i32, i64 (expressions over sizes) or f32."""

    type: Literal["i32", "i64", "f32"]
    value: Expression | float


@dataclass(frozen=True)
class TensorMap:
    """A buffer as the copy engine of sm_90 reads it, which a kernel takes by value (``CUtensorMap``, 128 bytes).

    A tensor of two to five dimensions that begins ``offset`` elements into the buffer: ``shape`` from the contiguous
    dimension on, and ``stride``, in elements, of all others. A copy brings a ``box`` of it to shared memory, zeros for
    what is beyond the tensor; lines of a box are 128 bytes long, and their pieces of 16 bytes are exchanged by the
    number of the line (``CU_TENSOR_MAP_SWIZZLE_128B``).
    """

    buffer: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    box: tuple[int, ...]
    offset: int = 0


Argument = str | Scalar | TensorMap
"""A buffer's name (its pointer is passed), a constant, or a buffer's description."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `shared` is dynamic shared memory in bytes. On cpu only `kernel` has a meaning.

    dependent: it may start while the step before it ends (programmatic dependent launch, sm_90 and newer): the kernel
    itself waits for that step before it touches memory, which nobody checks. For sources of our own sketches only.
    cooperative: all blocks are on the device at once, so that they may wait for each other; a grid that does not fit is
    refused when it is launched.
    """

    kernel: str
    grid: Triple = ONES
    block: Triple = ONES
    shared: Expression = 0
    args: tuple[Argument, ...] = ()
    cluster: Triple | None = None
    dependent: bool = False
    cooperative: bool = False


Constant = int | float | bool | str
"""What a Triton kernel's constexpr may be."""


@dataclass(frozen=True)
class TritonLaunch:
    """One launch of a Triton kernel, by the numbers that Triton's own launch takes; compiling makes a `Launch` of it.

    args: for the kernel's parameters but its constexprs, in order. constexprs: by name, sorted by it.
    """

    kernel: str
    grid: Triple = ONES
    args: tuple[Argument, ...] = ()
    constexprs: tuple[tuple[str, Constant], ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1


Step = Launch | LibraryCall | TritonLaunch


@dataclass(frozen=True)
class ResolvedLaunch:
    """A launch with every expression evaluated."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: tuple[int, int, int] | None
    args: tuple[Argument, ...]
    dependent: bool = False
    cooperative: bool = False


class PlanError(ValueError):
    """The plan is malformed; the message says where, and is cut where it repeats a long value."""

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} ...")


def require(condition: object, message: str) -> None:
    """Raise PlanError with the message unless the condition holds."""
    if not condition:
        raise PlanError(message)


def as_list(value: Any, where: str) -> list[Any]:
    """The value, if it is a list."""
    require(isinstance(value, list), f"{where}: not a list")
    return list(value)


def as_integers(value: Any, where: str) -> tuple[int, ...]:
    """The value's numbers, if it is a list of integers."""
    numbers = as_list(value, where)
    require(all(type(n) is int for n in numbers), f"{where}: not integers")
    return tuple(numbers)


def check_keys(value: Any, required: set[str], optional: set[str], where: str) -> None:
    """Require an object with all required keys and no unknown ones."""
    require(isinstance(value, dict), f"{where}: not an object")
    missing, unknown = required - set(value), set(value) - required - optional
    require(not missing, f"{where}: missing {sorted(missing)}")
    require(not unknown, f"{where}: unknown {sorted(map(str, unknown))}")


def resolve(step: Launch, sizes: Mapping[str, int]) -> ResolvedLaunch:
    """Evaluate a launch's expressions. Raises ExpressionError."""
    cluster = None if step.cluster is None else resolve_triple(step.cluster, sizes)
    return ResolvedLaunch(
        step.kernel,
        resolve_triple(step.grid, sizes),
        resolve_triple(step.block, sizes),
        evaluate(step.shared, sizes),
        cluster,
        resolve_arguments(step.args, sizes),
        step.dependent,
        step.cooperative,
    )


def resolve_triple(items: Triple, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """Three expressions' values. Raises ExpressionError."""
    return (evaluate(items[0], sizes), evaluate(items[1], sizes), evaluate(items[2], sizes))


def resolve_arguments(
    arguments: tuple[Argument, ...], sizes: Mapping[str, int]
) -> tuple[Argument, ...]:
    """Arguments with integers for expressions. Raises ExpressionError."""

    def one(item: Argument) -> Argument:
        if not isinstance(item, Scalar) or item.type not in ("i32", "i64"):
            return item
        if isinstance(item.value, float):
            return item
        return Scalar(item.type, evaluate(item.value, sizes))

    return tuple(one(item) for item in arguments)
