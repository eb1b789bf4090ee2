"""Library calls of a launch plan to and from JSON. Reading raises PlanError on anything malformed."""

from __future__ import annotations

from typing import Any

from sandbox.plan.library_calls import Convolution, Gemm, LibraryCall, View
from sandbox.plan.steps import as_integers, check_keys, require
from sandbox.task.specs import contiguous_stride

LIBRARIES = ("gemm", "convolution")
NUMBERS = ("stride", "padding", "dilation", "output_padding")
DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}


def read_call(value: dict[str, Any], where: str) -> LibraryCall:
    """The call from its JSON form. A view's stride may be missing (contiguous), and so may what has a default."""
    library = value.get("library")
    require(library in LIBRARIES, f"{where}: library must be one of {LIBRARIES}")
    if library == "gemm":
        check_keys(value, {"kind", "library", "a", "b", "out"}, {"c"}, where)
        return Gemm(**{name: _view(value[name], f"{where}: {name}") for name in _views(value)})
    required = {"kind", "library", "x", "weight", "out"}
    check_keys(value, required, {"bias", "groups", "transposed", "benchmark", *NUMBERS}, where)
    views = {name: _view(value[name], f"{where}: {name}") for name in _views(value)}
    numbers = _numbers(value, len(views["x"].shape) - 2, where)
    return Convolution(
        views["x"],
        views["weight"],
        views["out"],
        views.get("bias"),
        stride=numbers[0],
        padding=numbers[1],
        dilation=numbers[2],
        output_padding=numbers[3],
        groups=value.get("groups", 1),
        transposed=_flag(value, "transposed", where),
        benchmark=_flag(value, "benchmark", where),
    )


def _views(value: dict[str, Any]) -> list[str]:
    names = ("a", "b", "c", "x", "weight", "bias", "out")
    return [name for name in names if name in value]


def _view(value: Any, where: str) -> View:
    check_keys(value, {"buffer", "shape"}, {"stride", "offset"}, where)
    shape = as_integers(value["shape"], f"{where}: shape")
    stride = as_integers(value.get("stride", list(contiguous_stride(shape))), f"{where}: stride")
    offset = value.get("offset", 0)
    require(type(offset) is int, f"{where}: offset {offset!r}; a number of elements")
    require(isinstance(value["buffer"], str), f"{where}: buffer {value['buffer']!r}; a name")
    return View(value["buffer"], shape, stride, offset)


def _numbers(value: dict[str, Any], dimensions: int, where: str) -> list[tuple[int, ...]]:
    """In the order of `NUMBERS`."""
    return [
        as_integers(value.get(name, [DEFAULTS[name]] * dimensions), f"{where}: {name}")
        for name in NUMBERS
    ]


def _flag(value: dict[str, Any], name: str, where: str) -> bool:
    found = value.get(name, False)
    require(isinstance(found, bool), f"{where}: {name} {found!r}; true or false")
    return bool(found)


def call_json(step: LibraryCall) -> dict[str, Any]:
    """A call's JSON form, with all that has a default."""
    views = {name: _view_json(view) for name, view in (*step.operands, ("out", step.out))}
    if isinstance(step, Gemm):
        return {"kind": "call", "library": "gemm", **views}
    return {
        "kind": "call",
        "library": "convolution",
        **views,
        **{name: list(getattr(step, name)) for name in NUMBERS},
        "groups": step.groups,
        "transposed": step.transposed,
        "benchmark": step.benchmark,
    }


def _view_json(view: View) -> dict[str, Any]:
    return {
        "buffer": view.buffer,
        "shape": list(view.shape),
        "stride": list(view.stride),
        "offset": view.offset,
    }
