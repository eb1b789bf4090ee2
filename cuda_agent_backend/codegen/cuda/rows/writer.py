"""Kernels over rows -> CUDA: reductions, norms, the softmax family and scans, with all that is fused to them.

`emit_rows` prepares the kernel for the schedule's layout and picks how blocks that share a row meet:

* not at all, or in a cluster: one launch (`row_writer`);
* by launching again: `split`;
* by way of memory while all of them stay on the device: `cooperative`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cuda_agent_backend.codegen.analysis.cancellation import mark_cancelling
from cuda_agent_backend.codegen.cuda.common.parts import Emitted, needs_wide
from cuda_agent_backend.codegen.cuda.rows.cooperative import emit_grid
from cuda_agent_backend.codegen.cuda.rows.layout import Layout, read_layout
from cuda_agent_backend.codegen.cuda.rows.prepare.gather_order import order_rows_by_reuse
from cuda_agent_backend.codegen.cuda.rows.prepare.hoist import hoist_row_values
from cuda_agent_backend.codegen.cuda.rows.prepare.row_blocking import block_of_rows, block_rows
from cuda_agent_backend.codegen.cuda.rows.program import RowProgram, row_points
from cuda_agent_backend.codegen.cuda.rows.row_writer import RowWriter
from cuda_agent_backend.codegen.cuda.rows.split import emit_split
from cuda_agent_backend.codegen.cuda.rows.transposed_loads import check_square
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.loops import merge_outer
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter


def emit_rows(
    kernel: Kernel,
    region: LoweredRegion,
    parameters: Mapping[str, Parameter],
    name: str,
    device: DeviceFacts,
) -> Emitted:
    """The functions and launches of ``kernel``, called ``name``. Raises Unsupported where the schedule does not fit."""
    kernel = _in_order(kernel, parameters)
    layout = _layout(kernel, region, parameters, device)
    program = RowProgram.of(hoist_row_values(mark_cancelling(kernel)), layout, region)
    if layout.square:
        check_square(program, layout)
    if layout.is_split:
        return emit_split(region, layout, program, name, device)
    if layout.in_grid:
        return emit_grid(region, layout, program, name, device)
    writer = RowWriter(region, layout, program, device)
    text, launch = writer.function(name, [("pass", n) for n in range(len(program.passes))])
    return Emitted((text,), (launch,))


def _in_order(kernel: Kernel, parameters: Mapping[str, Parameter]) -> Kernel:
    """The kernel with its rows as the schedule takes them: several as one, or those that read the same side by side."""
    kernel = block_rows(merge_outer(kernel), block_of_rows(parameters))
    if parameters.get("lanes", "inner") == "inner" and parameters.get("across", 1) != 1:
        return order_rows_by_reuse(kernel)
    return kernel


def _layout(
    kernel: Kernel,
    region: LoweredRegion,
    parameters: Mapping[str, Parameter],
    device: DeviceFacts,
) -> Layout:
    """The schedule's layout, checked against the kernel and the device."""
    ordered = any(s.kind == "scan" for s in kernel.stages)
    wide = needs_wide(region, kernel)
    layout = read_layout(parameters, row_points(kernel), kernel.rows, ordered, wide)
    if layout.is_split and any(s.combine == "logaddexp" for s in kernel.stages):
        raise Unsupported("a split scan of exponentials, for which there is no reduction")
    if layout.is_split:
        layout = replace(layout, keep="none")  # nothing stays on the chip from launch to launch
    layout.check(device)
    if not layout.inner and (not kernel.outer or kernel.outer[-1][1] % layout.vector):
        raise Unsupported("lanes across the end of the rows")
    return layout
