"""The declarative launch plan: which buffers a candidate has and which kernels run on them, as JSON.

A plan is the whole host side of a candidate. It is data: the launcher carries it out, so a candidate brings no host code.
Every expression is evaluated and checked when a plan is made, so a Plan that exists is one that can be launched.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from sandbox.sizes import Expression, ExpressionError, evaluate
from sandbox.specs import ITEM_SIZES, TensorSpec, contiguous_stride

VERSION = 1
MAX_INPUTS, MAX_OUTPUTS = 12, 4
MAX_BUFFERS, MAX_STEPS, MAX_TEXT = 64, 64, 1 << 20
MAX_EXTENT = 1 << 40
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS, MAX_SHARED, MAX_CLUSTER, MAX_ARGUMENT_BYTES = 1024, 232448, 16, 4096

Target = Literal["cpu", "cuda"]
Kind = Literal["input", "output", "temporary", "prepacked"]
KIND_ORDER = ("input", "output", "temporary", "prepacked")
LIBRARIES = ("gemm", "convolution")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")

Triple = tuple[Expression, Expression, Expression]
ONES: Triple = (1, 1, 1)


class PlanError(ValueError):
    """The plan is malformed; the message says where."""


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


Argument = str | Scalar
"""A buffer's name (its pointer is passed) or a constant."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `shared` is dynamic shared memory in bytes. On cpu only `kernel` has a meaning."""

    kernel: str
    grid: Triple = ONES
    block: Triple = ONES
    shared: Expression = 0
    args: tuple[Argument, ...] = ()
    cluster: Triple | None = None


@dataclass(frozen=True)
class LibraryCall:
    """A GEMM or convolution run by the launcher. `parameters` is canonical JSON of the remaining fields."""

    library: str
    parameters: str


Step = Launch | LibraryCall


@dataclass(frozen=True)
class ResolvedLaunch:
    """A launch with every expression evaluated."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: tuple[int, int, int] | None
    args: tuple[Argument, ...]


@dataclass(frozen=True)
class Plan:
    """Buffers (inputs, outputs, temporaries, prepacked, in this order) and steps. Raises PlanError when inconsistent."""

    target: Target
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _check_plan(self)

    @cached_property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the inputs, in order."""
        return tuple(b.spec for b in self.buffers if b.kind == "input")

    @cached_property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the outputs, in order."""
        return tuple(b.spec for b in self.buffers if b.kind == "output")

    @cached_property
    def temporary_specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the temporaries, in order."""
        return tuple(b.spec for b in self.buffers if b.kind == "temporary")

    def launches(self) -> tuple[ResolvedLaunch, ...]:
        """The kernel launches with evaluated dimensions and arguments, in order; library calls are left out."""
        return tuple(_resolve(s, self.sizes) for s in self.steps if isinstance(s, Launch))

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        document = {
            "version": VERSION,
            "target": self.target,
            "buffers": [_buffer_json(b) for b in self.buffers],
            "sizes": dict(self.sizes),
            "steps": [_step_json(s) for s in self.steps],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan. Raises PlanError on anything malformed."""
        if len(text) > MAX_TEXT:
            raise PlanError(f"plan of {len(text)} characters; at most {MAX_TEXT}")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"not JSON: {error}") from None
        return cls.from_document(document)

    @classmethod
    def from_document(cls, document: Any) -> Plan:
        """Read a plan from parsed JSON. Raises PlanError on anything malformed."""
        _check_keys(document, {"version", "target", "buffers", "steps"}, {"sizes"}, "plan")
        _require(
            document["version"] == VERSION, f"version {document['version']!r}; known: {VERSION}"
        )
        sizes = document.get("sizes", {})
        _require(isinstance(sizes, dict), "sizes: not an object")
        return cls(
            target=document["target"],
            buffers=tuple(_read_buffer(b) for b in _list(document["buffers"], "buffers")),
            steps=tuple(_read_step(s, i) for i, s in enumerate(_list(document["steps"], "steps"))),
            sizes=sizes,
        )


def _require(condition: object, message: str) -> None:
    if not condition:
        raise PlanError(message)


def _list(value: Any, where: str) -> list[Any]:
    _require(isinstance(value, list), f"{where}: not a list")
    return list(value)


def _check_keys(value: Any, required: set[str], optional: set[str], where: str) -> None:
    _require(isinstance(value, dict), f"{where}: not an object")
    missing, unknown = required - set(value), set(value) - required - optional
    _require(not missing, f"{where}: missing {sorted(missing)}")
    _require(not unknown, f"{where}: unknown {sorted(map(str, unknown))}")


def _read_buffer(value: Any) -> Buffer:
    _check_keys(value, {"name", "kind", "dtype", "shape"}, {"stride"}, "buffer")
    shape = _integers(value["shape"], f"buffer {value['name']!r}: shape")
    has_stride = "stride" in value
    stride = (
        _integers(value["stride"], f"buffer {value['name']!r}: stride")
        if has_stride
        else contiguous_stride(shape)
    )
    return Buffer(value["name"], value["kind"], TensorSpec(value["dtype"], shape, stride))


def _integers(value: Any, where: str) -> tuple[int, ...]:
    numbers = _list(value, where)
    _require(all(type(n) is int for n in numbers), f"{where}: not integers")
    return tuple(numbers)


def _read_step(value: Any, index: int) -> Step:
    where = f"step {index}"
    _require(isinstance(value, dict), f"{where}: not an object")
    if value.get("kind") == "call":
        _require(value.get("library") in LIBRARIES, f"{where}: library must be one of {LIBRARIES}")
        rest = {k: v for k, v in value.items() if k not in ("kind", "library")}
        return LibraryCall(
            value["library"], json.dumps(rest, sort_keys=True, separators=(",", ":"))
        )
    _check_keys(value, {"kind", "kernel"}, {"grid", "block", "shared", "cluster", "args"}, where)
    _require(value["kind"] == "launch", f"{where}: kind must be 'launch' or 'call'")
    cluster = value.get("cluster")
    return Launch(
        kernel=value["kernel"],
        grid=_triple(value.get("grid", [1, 1, 1]), f"{where}: grid"),
        block=_triple(value.get("block", [1, 1, 1]), f"{where}: block"),
        shared=value.get("shared", 0),
        args=tuple(
            _read_argument(a, where) for a in _list(value.get("args", []), f"{where}: args")
        ),
        cluster=None if cluster is None else _triple(cluster, f"{where}: cluster"),
    )


def _triple(value: Any, where: str) -> Triple:
    items = _list(value, where)
    _require(len(items) == 3, f"{where}: needs three entries")
    return (items[0], items[1], items[2])


def _read_argument(value: Any, where: str) -> Argument:
    if isinstance(value, str):
        return value
    _require(isinstance(value, dict) and len(value) == 1, f"{where}: argument {value!r}")
    ((kind, content),) = value.items()
    if kind == "f32" and isinstance(content, str):
        try:
            content = float.fromhex(content)
        except (ValueError, OverflowError):
            raise PlanError(f"{where}: {content!r} is not a number") from None
    return Scalar(kind, content)


def _buffer_json(buffer: Buffer) -> dict[str, Any]:
    spec = buffer.spec
    return {
        "name": buffer.name,
        "kind": buffer.kind,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "stride": list(spec.stride),
    }


def _step_json(step: Step) -> dict[str, Any]:
    if isinstance(step, LibraryCall):
        return {"kind": "call", "library": step.library, **json.loads(step.parameters)}
    document: dict[str, Any] = {
        "kind": "launch",
        "kernel": step.kernel,
        "grid": list(step.grid),
        "block": list(step.block),
        "shared": step.shared,
        "args": [_argument_json(a) for a in step.args],
    }
    if step.cluster is not None:
        document["cluster"] = list(step.cluster)
    return document


def _argument_json(argument: Argument) -> str | dict[str, Any]:
    if isinstance(argument, str):
        return argument
    value = argument.value
    return {
        argument.type: str(value)
        if isinstance(value, float) and not math.isfinite(value)
        else value
    }


def _check_plan(plan: Plan) -> None:
    _require(plan.target in ("cpu", "cuda"), f"target {plan.target!r}; known: cpu, cuda")
    for name, size in plan.sizes.items():
        _require(_is_name(name) and type(size) is int, f"size {name!r}: {size!r}")
    _check_buffers(plan)
    _require(
        1 <= len(plan.steps) <= MAX_STEPS, f"{len(plan.steps)} steps; 1 to {MAX_STEPS} allowed"
    )
    if plan.target == "cpu":
        only = len(plan.steps) == 1 and isinstance(plan.steps[0], Launch)
        _require(only, "a cpu plan has exactly one launch step")
    names = {b.name for b in plan.buffers}
    for index, step in enumerate(plan.steps):
        if isinstance(step, Launch):
            _check_launch(step, plan, names, f"step {index}")


def _check_buffers(plan: Plan) -> None:
    _require(len(plan.buffers) <= MAX_BUFFERS, f"more than {MAX_BUFFERS} buffers")
    for buffer in plan.buffers:
        _check_buffer(buffer)
    names = [b.name for b in plan.buffers]
    _require(len(set(names)) == len(names), "two buffers have the same name")
    order = [KIND_ORDER.index(b.kind) for b in plan.buffers]
    _require(order == sorted(order), f"buffers must be ordered {', '.join(KIND_ORDER)}")
    inputs, outputs = order.count(0), order.count(1)
    _require(1 <= inputs <= MAX_INPUTS, f"{inputs} inputs; 1 to {MAX_INPUTS} allowed")
    _require(1 <= outputs <= MAX_OUTPUTS, f"{outputs} outputs; 1 to {MAX_OUTPUTS} allowed")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _check_buffer(buffer: Buffer) -> None:
    where, spec = f"buffer {buffer.name!r}", buffer.spec
    _require(_is_name(buffer.name), f"{where}: not an identifier")
    _require(
        buffer.kind in KIND_ORDER, f"{where}: kind {buffer.kind!r}; known: {', '.join(KIND_ORDER)}"
    )
    _require(
        spec.dtype in ITEM_SIZES, f"{where}: dtype {spec.dtype!r}; known: {', '.join(ITEM_SIZES)}"
    )
    _require(len(spec.shape) == len(spec.stride), f"{where}: shape and stride differ in length")
    _require(all(n >= 0 for n in spec.shape + spec.stride), f"{where}: negative shape or stride")
    _require(spec.extent <= MAX_EXTENT, f"{where}: too large")
    if buffer.kind == "temporary":
        contiguous = len(spec.shape) == 1 and spec.stride == (1,)
        _require(contiguous, f"{where}: temporaries are one-dimensional and contiguous")
    if buffer.kind == "output":
        _require(not overlaps(spec), f"{where}: elements of an output share memory")


def overlaps(spec: TensorSpec) -> bool:
    """Whether two elements of the layout may share memory (exact for layouts that nest, else said to overlap)."""
    reach = 0
    for stride, size in sorted(zip(spec.stride, spec.shape, strict=True)):
        if size == 1:
            continue
        if stride <= reach:
            return spec.numel > 0
        reach += stride * (size - 1)
    return False


def _check_launch(step: Launch, plan: Plan, names: set[str], where: str) -> None:
    _require(_is_name(step.kernel), f"{where}: kernel {step.kernel!r} is not an identifier")
    try:
        resolved = _resolve(step, plan.sizes)
    except ExpressionError as error:
        raise PlanError(f"{where}: {error}") from None
    for argument in resolved.args:
        _check_argument(argument, names, where)
    _require(len(resolved.args) * 8 <= MAX_ARGUMENT_BYTES, f"{where}: too many arguments")
    if plan.target == "cuda":
        _check_dimensions(resolved, where)


def _check_argument(argument: Argument, names: set[str], where: str) -> None:
    if isinstance(argument, str):
        _require(argument in names, f"{where}: no buffer named {argument!r}")
        return
    value = argument.value
    if argument.type == "f32":
        number = isinstance(value, float | int) and not isinstance(value, bool)
        _require(number, f"{where}: f32 argument {value!r}")
        return
    bits = {"i32": 31, "i64": 63}.get(argument.type)
    _require(bits is not None, f"{where}: argument type {argument.type!r}; known: i32, i64, f32")
    fits = isinstance(value, int) and bits is not None and -(2**bits) <= value < 2**bits
    _require(fits, f"{where}: {value!r} does not fit {argument.type}")


def _check_dimensions(launch: ResolvedLaunch, where: str) -> None:
    grid = all(1 <= n <= m for n, m in zip(launch.grid, MAX_GRID, strict=True))
    _require(grid, f"{where}: grid {launch.grid}; 1 to {MAX_GRID} allowed")
    block = all(1 <= n <= m for n, m in zip(launch.block, MAX_BLOCK, strict=True))
    threads = math.prod(launch.block)
    _require(
        block and threads <= MAX_THREADS,
        f"{where}: block {launch.block}; at most {MAX_THREADS} threads",
    )
    _require(
        0 <= launch.shared <= MAX_SHARED,
        f"{where}: {launch.shared} bytes shared; at most {MAX_SHARED}",
    )
    if launch.cluster is not None:
        small = all(n >= 1 for n in launch.cluster) and math.prod(launch.cluster) <= MAX_CLUSTER
        _require(small, f"{where}: cluster {launch.cluster}; at most {MAX_CLUSTER} blocks")
        divides = all(g % c == 0 for g, c in zip(launch.grid, launch.cluster, strict=True))
        _require(divides, f"{where}: cluster {launch.cluster} does not divide grid {launch.grid}")


def _resolve(step: Launch, sizes: Mapping[str, int]) -> ResolvedLaunch:
    def triple(items: Triple) -> tuple[int, int, int]:
        return (evaluate(items[0], sizes), evaluate(items[1], sizes), evaluate(items[2], sizes))

    def argument(item: Argument) -> Argument:
        if (
            isinstance(item, str)
            or item.type not in ("i32", "i64")
            or isinstance(item.value, float)
        ):
            return item
        return Scalar(item.type, evaluate(item.value, sizes))

    cluster = None if step.cluster is None else triple(step.cluster)
    args = tuple(argument(a) for a in step.args)
    return ResolvedLaunch(
        step.kernel,
        triple(step.grid),
        triple(step.block),
        evaluate(step.shared, sizes),
        cluster,
        args,
    )
