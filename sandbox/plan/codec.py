"""Buffers and steps of a launch plan to and from JSON. Reading raises PlanError on anything malformed."""

from __future__ import annotations

import math
from typing import Any

from sandbox.plan.library_calls import LibraryCall
from sandbox.plan.library_codec import call_json, read_call
from sandbox.plan.steps import (
    Argument,
    Buffer,
    Launch,
    PlanError,
    Scalar,
    Step,
    TensorMap,
    Triple,
    TritonLaunch,
    as_integers,
    as_list,
    check_keys,
    require,
)
from sandbox.task.specs import TensorSpec, contiguous_stride

TRITON_NUMBERS = ("num_warps", "num_stages", "num_ctas")
SWITCHES = ("dependent", "cooperative")
"""Of a launch: left out of its JSON form where they are false."""


def read_buffer(value: Any) -> Buffer:
    """A buffer from its JSON form; a missing stride means contiguous."""
    check_keys(value, {"name", "kind", "dtype", "shape"}, {"stride"}, "buffer")
    shape = as_integers(value["shape"], f"buffer {value['name']!r}: shape")
    has_stride = "stride" in value
    stride = (
        as_integers(value["stride"], f"buffer {value['name']!r}: stride")
        if has_stride
        else contiguous_stride(shape)
    )
    return Buffer(value["name"], value["kind"], TensorSpec(value["dtype"], shape, stride))


def read_step(value: Any, index: int) -> Step:
    """The step with this position from its JSON form."""
    where = f"step {index}"
    require(isinstance(value, dict), f"{where}: not an object")
    if value.get("kind") == "call":
        return read_call(value, where)
    if value.get("kind") == "triton":
        return _read_triton(value, where)
    may = {"grid", "block", "shared", "cluster", "args", *SWITCHES}
    check_keys(value, {"kind", "kernel"}, may, where)
    require(value["kind"] == "launch", f"{where}: kind must be 'launch', 'triton' or 'call'")
    cluster = value.get("cluster")
    return Launch(
        kernel=value["kernel"],
        grid=_triple(value.get("grid", [1, 1, 1]), f"{where}: grid"),
        block=_triple(value.get("block", [1, 1, 1]), f"{where}: block"),
        shared=value.get("shared", 0),
        args=_read_arguments(value, where),
        cluster=None if cluster is None else _triple(cluster, f"{where}: cluster"),
        **{name: _read_switch(value, name, where) for name in SWITCHES},
    )


def _read_switch(value: dict[str, Any], name: str, where: str) -> bool:
    found = value.get(name, False)
    require(isinstance(found, bool), f"{where}: {name} {found!r}; true or false")
    return bool(found)


def _read_triton(value: dict[str, Any], where: str) -> TritonLaunch:
    check_keys(value, {"kind", "kernel"}, {"grid", "args", "constexprs", *TRITON_NUMBERS}, where)
    constants = value.get("constexprs", {})
    require(isinstance(constants, dict), f"{where}: constexprs: not an object")
    numbers = {name: value[name] for name in TRITON_NUMBERS if name in value}
    return TritonLaunch(
        kernel=value["kernel"],
        grid=_triple(value.get("grid", [1, 1, 1]), f"{where}: grid"),
        args=_read_arguments(value, where),
        constexprs=tuple(sorted(constants.items())),
        **numbers,
    )


def _read_arguments(value: dict[str, Any], where: str) -> tuple[Argument, ...]:
    items = as_list(value.get("args", []), f"{where}: args")
    return tuple(_read_argument(item, where) for item in items)


def _triple(value: Any, where: str) -> Triple:
    items = as_list(value, where)
    require(len(items) == 3, f"{where}: needs three entries")
    return (items[0], items[1], items[2])


def _read_argument(value: Any, where: str) -> Argument:
    if isinstance(value, str):
        return value
    require(isinstance(value, dict) and len(value) == 1, f"{where}: argument {value!r}")
    ((kind, content),) = value.items()
    if kind == "tensor_map":
        return _read_tensor_map(content, f"{where}: tensor map")
    if kind == "f32" and isinstance(content, str):
        try:
            content = float.fromhex(content)
        except (ValueError, OverflowError):
            raise PlanError(f"{where}: {content!r} is not a number") from None
    return Scalar(kind, content)


def _read_tensor_map(value: Any, where: str) -> TensorMap:
    check_keys(value, {"buffer", "shape", "stride", "box"}, {"offset"}, where)
    shape, stride, box = (
        as_integers(value[name], f"{where}: {name}") for name in ("shape", "stride", "box")
    )
    offset = value.get("offset", 0)
    require(type(offset) is int, f"{where}: offset {offset!r}")
    return TensorMap(value["buffer"], shape, stride, box, offset)


def buffer_json(buffer: Buffer) -> dict[str, Any]:
    """A buffer's JSON form."""
    spec = buffer.spec
    return {
        "name": buffer.name,
        "kind": buffer.kind,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "stride": list(spec.stride),
    }


def step_json(step: Step) -> dict[str, Any]:
    """A step's JSON form."""
    if isinstance(step, LibraryCall):
        return call_json(step)
    if isinstance(step, TritonLaunch):
        return {
            "kind": "triton",
            "kernel": step.kernel,
            "grid": list(step.grid),
            "args": [_argument_json(a) for a in step.args],
            "constexprs": dict(step.constexprs),
            **{name: getattr(step, name) for name in TRITON_NUMBERS},
        }
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
    return document | {name: True for name in SWITCHES if getattr(step, name)}


def _argument_json(argument: Argument) -> str | dict[str, Any]:
    if isinstance(argument, str):
        return argument
    if isinstance(argument, TensorMap):
        lists = {name: list(getattr(argument, name)) for name in ("shape", "stride", "box")}
        return {"tensor_map": {"buffer": argument.buffer, "offset": argument.offset, **lists}}
    value = argument.value
    return {
        argument.type: str(value)
        if isinstance(value, float) and not math.isfinite(value)
        else value
    }
