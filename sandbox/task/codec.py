"""Tasks as canonical JSON text, and back.

Floats are written as hex so that no digit is lost; references and torch constants are objects with
one key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sandbox.task.arguments import (
    Arg,
    Device,
    DType,
    InputRef,
    Layout,
    MemoryFormat,
    NodeRef,
    TaskError,
)
from sandbox.task.node import Node, Ref
from sandbox.task.specs import ITEM_SIZES, TensorSpec

Item = TypeVar("Item")
DTYPES = frozenset((*ITEM_SIZES, "uint16", "uint32", "uint64", "complex64", "complex128"))
MEMORY_FORMATS = frozenset(
    ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
)

MAX_EXTENT = 1 << 40
"""Elements of a tensor, one by one or from the first to the last in memory."""
MAX_DEPTH = 16
"""How deep lists may lie in each other; no operator's schema goes beyond two."""


Parts = tuple[
    str, tuple[TensorSpec, ...], tuple[Node, ...], tuple[Ref, ...], tuple[TensorSpec, ...]
]
"""Of a task: target, inputs, nodes, outputs, output specs."""


def encode(
    target: str,
    inputs: Sequence[TensorSpec],
    nodes: Sequence[Node],
    outputs: Sequence[Ref],
    output_specs: Sequence[TensorSpec],
) -> str:
    """Canonical JSON of a task with these parts."""
    body = {
        "target": target,
        "inputs": [_spec_out(spec) for spec in inputs],
        "nodes": [
            {"op": node.op, "args": {name: _arg_out(arg) for name, arg in node.args.items()}}
            for node in nodes
        ],
        "outputs": [_arg_out(output) for output in outputs],
        "output_specs": [_spec_out(spec) for spec in output_specs],
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def decode(text: str) -> Parts:
    """The parts of the task in a JSON text; raises `TaskError` with the place of the fault."""
    try:
        body = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"not a task: {error}") from None
    fields = _fields(body, {"target", "inputs", "nodes", "outputs", "output_specs"}, "task")
    target = fields["target"]
    if not isinstance(target, str):
        raise TaskError("target: not a string")
    return (
        target,
        _items(fields, "inputs", "input", _spec_in),
        _items(fields, "nodes", "node", _node_in),
        _items(fields, "outputs", "output", _ref_in),
        _items(fields, "output_specs", "output spec", _spec_in),
    )


def _items(
    fields: dict[str, Any], name: str, one: str, read: Callable[[Any, str], Item]
) -> tuple[Item, ...]:
    """Every item of the list in a field. one: what messages call an item."""
    found = enumerate(_list(fields[name], name))
    return tuple(read(item, f"{one} {number}") for number, item in found)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _fields(item: Any, names: set[str], where: str) -> dict[str, Any]:
    if not isinstance(item, dict) or set(item) != names:
        raise TaskError(f"{where}: an object with the keys {', '.join(sorted(names))} is needed")
    return item


def _list(item: Any, where: str) -> list[Any]:
    if not isinstance(item, list):
        raise TaskError(f"{where}: not a list")
    return item


def _integer(item: Any, where: str) -> int:
    if not isinstance(item, int) or isinstance(item, bool):
        raise TaskError(f"{where}: {item!r} is not an integer")
    return item


def _dtype(item: Any, where: str) -> str:
    if not isinstance(item, str) or item not in DTYPES:
        raise TaskError(f"{where}: unknown dtype {item!r}")
    return item


def _spec_out(spec: TensorSpec) -> dict[str, Any]:
    return {"dtype": spec.dtype, "shape": list(spec.shape), "stride": list(spec.stride)}


def _spec_in(item: Any, where: str) -> TensorSpec:
    fields = _fields(item, {"dtype", "shape", "stride"}, where)
    shape = tuple(_integer(size, where) for size in _list(fields["shape"], where))
    stride = tuple(_integer(step, where) for step in _list(fields["stride"], where))
    if len(shape) != len(stride) or any(number < 0 for number in shape + stride):
        raise TaskError(
            f"{where}: shape {list(shape)} and stride {list(stride)} do not describe a tensor"
        )
    if not isinstance(fields["dtype"], str) or fields["dtype"] not in ITEM_SIZES:
        raise TaskError(f"{where}: unknown dtype {fields['dtype']!r}")
    spec = TensorSpec(fields["dtype"], shape, stride)
    if max(*shape, *stride, spec.numel, spec.extent, 0) > MAX_EXTENT:
        raise TaskError(f"{where}: larger than any memory")
    return spec


def _node_in(item: Any, where: str) -> Node:
    fields = _fields(item, {"op", "args"}, where)
    if not isinstance(fields["op"], str) or not isinstance(fields["args"], dict):
        raise TaskError(f"{where}: op is a string, args an object")
    where = f"{where} ({fields['op']})"
    return Node(
        fields["op"],
        {name: _arg_in(arg, f"{where} {name}") for name, arg in fields["args"].items()},
    )


def _ref_in(item: Any, where: str) -> Ref:
    arg = _arg_in(item, where)
    if not isinstance(arg, NodeRef | InputRef):
        raise TaskError(f"{where}: not a reference")
    return arg


def _arg_out(arg: Arg) -> Any:
    match arg:
        case NodeRef(node, output):
            return {"n": node if output is None else [node, output]}
        case InputRef(index):
            return {"i": index}
        case DType(name):
            return {"dtype": name}
        case Device():
            return {"device": True}
        case MemoryFormat(name):
            return {"memory_format": name}
        case Layout(name):
            return {"layout": name}
        case bool() | int() | str() | None:
            return arg
        case float():
            return {"f": arg.hex()}
        case tuple():
            return [_arg_out(item) for item in arg]


def _arg_in(item: Any, where: str, depth: int = 0) -> Arg:
    if isinstance(item, list):
        if depth > MAX_DEPTH:
            raise TaskError(f"{where}: lists nested deeper than {MAX_DEPTH}")
        return tuple(_arg_in(part, where, depth + 1) for part in item)
    if item is None or isinstance(item, bool | int | str):
        return item
    if not isinstance(item, dict) or len(item) != 1:
        raise TaskError(f"{where}: {item!r} is not an argument")
    ((kind, value),) = item.items()
    return _tagged(kind, value, where)


def _tagged(kind: str, value: Any, where: str) -> Arg:
    match kind:
        case "n" if isinstance(value, list) and len(value) == 2:
            return NodeRef(_integer(value[0], where), _index(value[1], where))
        case "n":
            return NodeRef(_integer(value, where))
        case "i":
            return InputRef(_integer(value, where))
        case "f":
            return _float(value, where)
        case "dtype":
            return DType(_dtype(value, where))
        case "device" if value is True:
            return Device()
        case "memory_format" if isinstance(value, str) and value in MEMORY_FORMATS:
            return MemoryFormat(value)
        case "layout" if value == "strided":
            return Layout(value)
    raise TaskError(f"{where}: {{{kind!r}: {value!r}}} is not an argument")


def _index(item: Any, where: str) -> int:
    number = _integer(item, where)
    if number < 0:
        raise TaskError(f"{where}: {number} is not an output")
    return number


def _float(item: Any, where: str) -> float:
    try:
        return float.fromhex(item)
    except (TypeError, ValueError, OverflowError):
        raise TaskError(f"{where}: {item!r} is not a hexadecimal float") from None
