"""Library calls of a task that is taken apart (`called`): which elements of which buffers they read and write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cuda_agent_backend.codegen.cuda.library.extern_split import CONVOLUTION, ExternSplit
from cuda_agent_backend.codegen.cuda.library.unfuse_bias import OPERANDS, PLAIN, SUMMAND
from cuda_agent_backend.codegen.ir.failure import Unsupported
from sandbox.graph.build import build_graph
from sandbox.plan.library_calls import Convolution, Gemm, LibraryCall, View
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Ref


def name_of(called: ExternSplit, ref: Ref) -> str:
    """The buffer of an input or of a value that is kept."""
    if isinstance(ref, InputRef):
        return f"in{ref.index}"
    number = called.results.get(ref)
    return f"between{called.kept.index(ref)}" if number is None else f"out{number}"


def calls_of(
    called: ExternSplit, level: int, layouts: Mapping[Ref, TensorSpec]
) -> tuple[LibraryCall, ...]:
    """The calls behind the part of that number.

    Raises:
        Unsupported: an operand cannot be read where it lies.
        TaskError: one is seen as what its layout does not allow.
    """
    made = []
    for number, own in called.levels.items():
        if own == level and NodeRef(number) in called.kept:
            node, out = called.task.nodes[number], _view(called, NodeRef(number), layouts)
            make = _convolution if node.name == CONVOLUTION else _gemm
            made.append(make(called, node, out, layouts))
    return tuple(made)


def _gemm(called: ExternSplit, node: Node, out: View, layouts: Mapping[Ref, TensorSpec]) -> Gemm:
    a, b = (_operand(called, node, name, layouts) for name in OPERANDS[node.name])
    summand = _operand(called, node, SUMMAND, layouts) if node.name in PLAIN else None
    return Gemm(a, b, out, summand)


def _convolution(
    called: ExternSplit, node: Node, out: View, layouts: Mapping[Ref, TensorSpec]
) -> Convolution:
    given: Mapping[str, Any] = node.args
    return Convolution(
        _operand(called, node, "input", layouts),
        _operand(called, node, "weight", layouts),
        out,
        stride=given["stride"],
        padding=given["padding"],
        dilation=given["dilation"],
        groups=given["groups"],
        transposed=given["transposed"],
        output_padding=given["output_padding"],
    )


def _operand(called: ExternSplit, node: Node, name: str, layouts: Mapping[Ref, TensorSpec]) -> View:
    ref = node.args[name]
    assert isinstance(ref, NodeRef | InputRef)
    return _view(called, ref, layouts)


def _view(called: ExternSplit, ref: Ref, layouts: Mapping[Ref, TensorSpec]) -> View:
    """Where a value's elements are, which is its own memory or what it shows of another's."""
    base, chain = called.base(ref), called.chain(ref, layouts)
    if not chain.nodes:
        return View(name_of(called, base), layouts[base].shape, layouts[base].stride)
    (output,) = build_graph(chain).graph.find_nodes(op="output")
    (value,) = output.meta["val"]
    assert isinstance(value, torch.Tensor)
    if layouts[base].dtype != str(value.dtype).removeprefix("torch."):
        raise Unsupported("an operand that is a view in another dtype")
    offset = int(value.storage_offset())
    return View(name_of(called, base), tuple(value.shape), tuple(value.stride()), offset)
