"""Pieces of source that the kernels of GEMMs share: where elements are, masks, and what is done with results."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.common.lane_printer import LanePrinter, memory_printer
from cuda_agent_backend.codegen.cuda.common.parts import (
    local_types,
)
from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.gemm.operands import Output, Side
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.printer import c_index
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction


def find_lines(
    side: Side, guard: str, index: str, dtype_of: Callable[[str], torch.dtype], name: str
) -> list[str]:
    """A function from row (or column) ``x`` and term to the element's place, and whether there is one."""
    lines = [
        *decompose("x", side.rows.dims, index),
        *decompose("k", side.inner.dims, index),
        f"there = {guard or 'true'};",
    ]
    if side.factor.mask is not None:
        lines += [*mask_lines(side.factor.mask, dtype_of), "there = there && present;"]
    base = f"m_{side.factor.buffer}"
    if side.factor.other is not None:
        other, loop = side.factor.other
        base = f"({loop} ? m_{other} : {base})"
    lines.append(f"return {base} + {c_index(side.index)};")
    return [f"auto {name} = [&](int x, int k, bool& there) {{", *indented(lines), "};"]


def mask_lines(mask: Body, dtype_of: Callable[[str], torch.dtype]) -> list[str]:
    """``present``: what a factor's mask says."""
    printer = LanePrinter(None, lambda b: f"m_{b}", no_local, dtype_of, "")
    return [
        "constexpr int L = 1;",
        *printer.lines(mask, "q"),
        f"const bool present = q{mask.results[0].number}.v[0];",
    ]


def tail_lines(
    kernel: Kernel, c: GemmForm, region: LoweredRegion, output: Output, index: str
) -> list[str]:
    """What is made of ``total``, results from ``row`` and ``column`` on, and where it is stored."""
    lane = (c.rows if output.by_rows else c.columns)[-1][0]
    forwarded: dict[str, str] = {}

    def local(i: Instruction) -> str:
        if i.buffer is None or i.buffer not in forwarded:
            raise Unsupported("a value of the tail that is not there")
        return forwarded[i.buffer]

    types = local_types(kernel)
    printer = memory_printer(region, local, lane, output.vector)
    out = [*decompose("row", c.rows, index), *decompose("column", c.columns, index)]
    for number, stage in enumerate(kernel.stages):
        value = "total"
        if number:
            prefix = f"s{number}v"
            out += printer.lines(stage.body, prefix)
            value = f"{prefix}{stage.body.results[0].number}"
        out += [printer.store(s.buffer, s.index, value) for s in stage.stores]
        forwarded |= {s.buffer: f"ca::to<{types[s.buffer]}>({value})" for s in stage.local_stores}
    return out


def no_local(i: Instruction) -> str:
    raise Unsupported("a factor that is made in the kernel")


def later_stages(
    kernel: Kernel, before: int, printer: LanePrinter, made: dict[str, str]
) -> list[str]:
    """The stages behind the first ``before``, one after another.

    made: is told what arrays that stages pass on are in.
    """
    types, out = local_types(kernel), list[str]()
    for number, stage in enumerate(kernel.stages[before:], before):
        out += printer.lines(stage.body, f"s{number}v")
        value = f"s{number}v{stage.body.results[0].number}"
        out += [printer.store(s.buffer, s.index, value) for s in stage.stores]
        made |= {s.buffer: f"ca::to<{types[s.buffer]}>({value})" for s in stage.local_stores}
    return out
