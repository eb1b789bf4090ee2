"""The operators `cuda_agent::run_{n}_{m}`: n inputs in, m outputs out, one kernel chosen by key.

Their names and schemas never change, so compiled code that torch keeps on disk stays valid; what runs is looked up by
key when it runs. The implementation here serves everywhere; the native one (see `native`) takes its place for speed.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from sandbox import operator_library
from sandbox.launcher.program import Program, temporary_layout
from sandbox.launcher.registry import UnknownKernelError, lookup, plan_of
from sandbox.operator_library import (
    KERNEL,
    MAX_INPUTS,
    MAX_OUTPUTS,
    NAMESPACE,
    define_schemas,
    implementations,
    op_name,
)
from sandbox.plan.alignment import INPUT_ALIGNMENT
from sandbox.task.specs import TensorSpec, overlaps

_lock = threading.Lock()
_library: torch.library.Library | None = None  # what it registers lives as long as this object


def define_ops() -> None:
    """Define all operators, with what traces them. Once per process; later calls do nothing."""
    global _library
    with _lock:
        if _library is not None:
            return
        implementations[KERNEL] = lambda: run
        define_schemas()
        library = torch.library.Library(NAMESPACE, "FRAGMENT")
        for inputs in range(1, MAX_INPUTS + 1):
            for outputs in range(1, MAX_OUTPUTS + 1):
                name = op_name(inputs, outputs)
                torch.library.register_fake(f"{NAMESPACE}::{name}", _fake, lib=library)
        _library = library


def op_for(inputs: int, outputs: int) -> torch._ops.OpOverload:
    """The operator for so many inputs and outputs. define_ops() must have run."""
    packet = getattr(torch.ops.cuda_agent, op_name(inputs, outputs))
    overload: torch._ops.OpOverload = packet.default
    return overload


def _fake(key: int, *inputs: torch.Tensor) -> Any:
    specs = plan_of(key).output_specs
    return _result([allocate(spec, inputs[0].device) for spec in specs])


def run(key: int, *inputs: torch.Tensor) -> Any:
    """What an operator does without the native implementation. Raises UnknownKernelError, or RuntimeError on inputs
    that the kernel does not take."""
    try:
        program = lookup(key)
    except UnknownKernelError:
        if stand_in := operator_library.find_stand_in(key):
            return stand_in(*inputs)
        raise
    plan = program.plan
    if len(inputs) != len(plan.input_specs):
        raise RuntimeError(
            f"cuda_agent: {len(inputs)} inputs given, the kernel takes {len(plan.input_specs)}"
        )
    device = inputs[0].device
    alignment = INPUT_ALIGNMENT[plan.target]
    specs = enumerate(plan.input_specs)
    ready = [fit(inputs[i], spec, i, device, plan.target, alignment) for i, spec in specs]
    outputs = [allocate(spec, device) for spec in plan.output_specs]
    _launch(program, ready, outputs, device)
    return _result(outputs)


def _launch(
    program: Program, inputs: list[torch.Tensor], outputs: list[torch.Tensor], device: torch.device
) -> None:
    offsets, size = temporary_layout(program.plan)
    block = torch.empty(size, dtype=torch.uint8, device=device) if size else None
    base = 0 if block is None else block.data_ptr()
    pointers = [t.data_ptr() for t in inputs + outputs] + [base + offset for offset in offsets]
    if device.type == "cpu":
        program.launch(pointers)
    else:
        program.launch(pointers, torch.cuda.current_stream(device).cuda_stream, device.index)


def allocate(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """Memory for a tensor as specified."""
    return torch.empty_strided(
        spec.shape, spec.stride, dtype=getattr(torch, spec.dtype), device=device
    )


def _result(outputs: list[torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def fit(
    tensor: torch.Tensor,
    spec: TensorSpec,
    index: int,
    device: torch.device,
    target: str,
    alignment: int,
) -> torch.Tensor:
    """The tensor itself where it is as the plan says, else a copy with the plan's strides and alignment."""
    if tensor.device != device or device.type != target:
        raise RuntimeError(
            f"cuda_agent: input {index} is on {tensor.device}; the kernel runs on {target}"
        )
    if tuple(tensor.shape) != spec.shape or tensor.dtype != getattr(torch, spec.dtype):
        raise RuntimeError(
            f"cuda_agent: input {index} is {tensor.dtype} {tuple(tensor.shape)}; "
            f"the kernel takes torch.{spec.dtype} {spec.shape}"
        )
    alike = _same_layout(tensor, spec)
    if alike and tensor.data_ptr() % alignment == 0:
        return tensor
    if alike and overlaps(spec):  # the memory behind it, at an address that the allocator chooses
        line = tensor.as_strided((spec.extent,), (1,))
        return line.clone().as_strided(spec.shape, spec.stride)
    if overlaps(spec):
        raise RuntimeError(
            f"cuda_agent: input {index} has strides {tuple(tensor.stride())}; "
            f"the kernel takes the overlapping layout {spec.stride}, which a copy cannot have"
        )
    return allocate(spec, device).copy_(tensor)


def _same_layout(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    if spec.numel == 0:
        return True
    pairs = zip(spec.shape, spec.stride, tensor.stride(), strict=True)
    return all(size == 1 or wanted == actual for size, wanted, actual in pairs)
