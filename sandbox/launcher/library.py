"""Library calls of a plan through torch's Python interface: what csrc/library.cpp does for the native operator."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from sandbox.plan.plan import Convolution, Gemm, LibraryCall, Plan, View

if TYPE_CHECKING:
    import torch


def run_call(
    step: LibraryCall, plan: Plan, pointers: Sequence[int], stream: int = 0, device: int = -1
) -> None:
    """Make the call on raw addresses in plan order, on the stream. Raises RuntimeError where torch does."""
    import torch

    place = torch.device("cpu") if device < 0 else torch.device("cuda", device)
    with ExitStack() as scope:
        scope.enter_context(torch.no_grad())
        # what the plan says is computed, in the dtypes that it says
        scope.enter_context(torch._C._DisableAutocast())
        if device >= 0:
            scope.enter_context(torch.cuda.device(device))
            if stream != torch.cuda.current_stream(place).cuda_stream:
                side = torch.cuda.ExternalStream(stream, device=place)
                scope.enter_context(torch.cuda.stream(side))
        made = {
            name: _tensor(view, plan, pointers, place)
            for name, view in (*step.operands, ("out", step.out))
        }
        if isinstance(step, Gemm):
            _multiply(**made)
        else:
            _convolve(step, **made)


def _tensor(view: View, plan: Plan, pointers: Sequence[int], place: torch.device) -> torch.Tensor:
    import torch

    number = next(n for n, buffer in enumerate(plan.buffers) if buffer.name == view.buffer)
    spec = plan.buffers[number].spec
    storage = torch._C._construct_storage_from_data_pointer(
        pointers[number], place, spec.extent * spec.itemsize
    )
    empty = torch.empty(0, dtype=getattr(torch, spec.dtype), device=place)
    return empty.set_(storage, view.offset, view.shape, view.stride)


def _multiply(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, c: torch.Tensor | None = None
) -> None:
    import torch

    if c is None:
        (torch.mm if a.dim() == 2 else torch.bmm)(a, b, out=out)
    elif a.dim() == 2:
        torch.addmm(c, a, b, out=out)
    else:
        torch.baddbmm(c, a, b, out=out)


def _convolve(
    step: Convolution,
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    import torch

    if x.device.type == "cpu" or not torch.backends.cudnn.enabled:
        numbers = (step.stride, step.padding, step.dilation)
        made = torch.ops.aten.convolution(
            x, weight, bias, *numbers, step.transposed, step.output_padding, step.groups
        )
        out.copy_(made)
        return
    _by_cudnn(step, x, weight, out)
    if bias is not None:
        out.add_(bias.view(-1, *[1] * (out.dim() - 2)))


def _by_cudnn(step: Convolution, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """cuDNN has no convolution of one dimension: it is one of two, with a first one of size 1."""
    import torch

    line = out.dim() == 3
    if line:
        x, weight, out = x.unsqueeze(2), weight.unsqueeze(2), out.unsqueeze(2)
    stride, padding = [1] * line + [*step.stride], [0] * line + [*step.padding]
    dilation, more = [1] * line + [*step.dilation], [0] * line + [*step.output_padding]
    flags = cudnn_flags(step)
    aten = torch.ops.aten
    if step.transposed:
        numbers = (padding, more, stride, dilation, step.groups)
        out.copy_(aten.cudnn_convolution_transpose(x, weight, *numbers, *flags))
    else:
        numbers_in_place = (padding, stride, dilation, step.groups)
        aten.cudnn_convolution.out(x, weight, *numbers_in_place, *flags, out=out)


def cudnn_flags(step: Convolution) -> tuple[bool, bool, bool]:
    """Whether cuDNN's algorithms are measured, have to be deterministic, and may use TF32.

    Torch keeps one algorithm for each shape and these flags, and measures only where it has none yet: a call of the
    user's, or of a baseline, before ours would decide for it, and ours for those after. Deterministic algorithms are
    kept apart from theirs, so what a step has measured is asked for as one of those.
    """
    import torch

    cudnn = torch.backends.cudnn
    exact = torch.are_deterministic_algorithms_enabled() or cudnn.deterministic
    apart = step.benchmark and not cudnn.benchmark and not exact
    tf32: bool = cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return cudnn.benchmark or apart, exact or apart, tf32
