"""Task -> loop nests, through Inductor's own lowering.

The lowering runs with CPU fake tensors for both targets: the loop IR does not depend on the device,
and neither a GPU nor its driver is needed to write a CUDA kernel. Reductions are kept whole (no
splitting): splitting is a decision of our schedules.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.exc import (
    LoweringException,
    MissingOperatorWithDecomp,
    MissingOperatorWithoutDecomp,
)
from torch._inductor.graph import GraphLowering
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import V

from cuda_agent_backend.codegen.ir.banded import band_of
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import with_dividends_from_zero
from cuda_agent_backend.codegen.ir.operand_types import made_defined, made_safe, types_of
from cuda_agent_backend.codegen.ir.region import ARG_REDUCTIONS, Buffer, LoweredRegion, Stage, Store
from cuda_agent_backend.codegen.ir.ssa import PLACE, Body, narrow_comparisons, trace
from cuda_agent_backend.codegen.lowering import diagonals, windows
from cuda_agent_backend.codegen.lowering import overlap_add as overlap
from cuda_agent_backend.codegen.lowering import running_scans as running
from cuda_agent_backend.codegen.lowering.expand import STORED, expand
from sandbox.graph.build import build_graph
from sandbox.task.task import Task

REDUCTIONS = ("sum", "prod", "max", "min", "any", "xor_sum", "welford", *ARG_REDUCTIONS)
SCANS = {
    "add": "sum",
    "mul": "prod",
    "maximum": "max",
    "minimum": "min",
    "logaddexp": "logaddexp",
}


BIT_CAST = torch.ops.aten.view.dtype
"""Of what rounding decides, the oracle in float64 has other bits."""


class _RegionLowering(GraphLowering):
    """Graph lowering that also accepts scans and poolings that Inductor hands to ATen."""

    meant_for = "cpu"

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        with windows.small_windows(target, self.meant_for):
            if target is BIT_CAST:
                raise Unsupported("bit casts between dtypes")
            found = None
            for own in (windows, running, overlap, diagonals):
                if found is None:
                    found = own.lowered(self.current_node, args, kwargs)
            try:
                if found is None:
                    found = super().call_function(target, args, kwargs)
                if self.current_node.meta.get(STORED):
                    found.realize()
                return found
            except (MissingOperatorWithDecomp, MissingOperatorWithoutDecomp) as error:
                raise Unsupported(f"{target}, for which Inductor has no loops") from error
            except (
                LoweringException
            ) as error:  # of Inductor's code: it then compiles no such graph either
                raise Unsupported(f"{target}, which Inductor fails to lower") from error

    def has_feature(self, device: Any, feature: BackendFeature) -> bool:
        if feature == BackendFeature.SCAN:
            return True
        return bool(super().has_feature(device, feature))


_LOWERING_CONFIG: dict[str, Any] = {
    "split_reductions": False,
    "force_pointwise_cat": True,
    "fallback_random": True,
    "post_grad_custom_post_pass": None,
    "max_autotune": False,
    "layout_optimization": False,
    "comprehensive_padding": False,
    # What goes through memory between two stages, which releases of torch and their users set otherwise: 30 and 8 under
    # 2.11. A gather at places between pixels, say, is one kernel under these, and several under those.
    "realize_opcount_threshold": 50,
    "realize_acc_reads_threshold": 12,
    "realize_reads_threshold": 4,
    # An operator without a lowering is refused by name instead of being registered, for the whole process, as a call to
    # ATen; where the environment has CI set, registering one that has a decomposition raises AssertionError.
    "implicit_fallbacks": False,
}


def _integer(x: Any) -> int:
    size = sympy.sympify(x)
    if not size.is_Integer:
        raise Unsupported(f"symbolic size {x}")
    return int(size)


def _variables(
    prefix: str, sizes: Sequence[Any]
) -> tuple[list[sympy.Expr], list[tuple[sympy.Symbol, int]]]:
    """Loop variables for ``sizes``; a dimension of one gets the constant 0 instead."""
    index: list[sympy.Expr] = []
    loops: list[tuple[sympy.Symbol, int]] = []
    for position, size in enumerate(_integer(s) for s in sizes):
        if size == 1:
            index.append(sympy.S.Zero)
        else:
            symbol = sympy.Symbol(f"{prefix}{position}", integer=True, nonnegative=True)
            index.append(symbol)
            loops.append((symbol, size))
    return index, loops


def _scan_combine(data: ir.Scan) -> str:
    if len(data.inner_fns) != 1:
        raise Unsupported("scan over tuples")

    class Recorder(DefaultHandler):
        def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return name

    with V.set_ops_handler(Recorder()):
        (result,) = data.combine_fn(("left",), ("right",))
    name = getattr(result, "value", result)
    if name not in SCANS:
        raise Unsupported(f"scan with combine function {name}")
    return SCANS[name]


def _stage(buffer: ir.ComputedBuffer) -> Stage:
    data, name = buffer.data, buffer.get_name()
    layout = buffer.get_layout()
    indexer = layout.make_indexer()
    if isinstance(data, ir.Scan):
        index, outer = _variables("o", data.ranges)
        rindex, inner = _variables("r", data.scan_ranges)
        full = data.reindex(index, rindex)
        body = trace([data.inner_fn], full)
        stores = (Store(name, sympy.sympify(indexer(full))),)
        return Stage(
            name,
            "scan",
            _scan_combine(data),
            layout.dtype,
            tuple(outer),
            tuple(inner),
            body,
            stores,
        )
    if isinstance(data, ir.WelfordReduction):
        if data.reduction_type != "welford_reduce":
            raise Unsupported(f"reduction {data.reduction_type}")
        combine, field, functions = "welford", data.output_index, [data.inner_fn]
    elif isinstance(data, ir.Reduction):
        combine, field, functions = data.reduction_type, 0, [data.inner_fn]
    elif isinstance(data, ir.Pointwise):
        index, outer = _variables("o", data.ranges)
        body = trace([data.inner_fn], index)
        return Stage(
            name,
            "map",
            "",
            layout.dtype,
            tuple(outer),
            (),
            body,
            (Store(name, sympy.sympify(indexer(index))),),
        )
    else:
        raise Unsupported(f"loop kind {type(data).__name__}")
    if combine not in REDUCTIONS:
        raise Unsupported(f"reduction {combine}")
    index, outer = _variables("o", data.ranges)
    rindex, inner = _variables("r", data.reduction_ranges)
    body = trace(functions, index, rindex)
    store = Store(name, sympy.sympify(indexer(index)), field)
    return Stage(name, "reduce", combine, layout.dtype, tuple(outer), tuple(inner), body, (store,))


def _merge_welford(stages: list[Stage]) -> list[Stage]:
    """Inductor yields one buffer per field of a Welford reduction; make them one stage."""
    merged: list[Stage] = []
    for stage in stages:
        previous = merged[-1] if merged else None
        if (
            previous is not None
            and stage.combine == previous.combine == "welford"
            and stage.body.instructions == previous.body.instructions
            and stage.outer == previous.outer
            and stage.inner == previous.inner
        ):
            merged[-1] = dataclasses.replace(previous, stores=previous.stores + stage.stores)
        else:
            merged.append(stage)
    return merged


def _narrowed(stage: Stage) -> Stage:
    points = math.prod(n for _, n in (*stage.outer, *stage.inner))
    return dataclasses.replace(stage, body=narrow_comparisons(stage.body, points))


def _dividing_from_zero(stage: Stage) -> Stage:
    body = with_dividends_from_zero(stage.body, (*stage.outer, *stage.inner))
    return dataclasses.replace(stage, body=body)


def _drop_dead(stages: list[Stage], needed: set[str]) -> list[Stage]:
    """Remove stores and stages that nothing reads."""
    live: list[Stage] = []
    for stage in reversed(stages):
        stores = tuple(s for s in stage.stores if s.buffer in needed)
        if stores:
            needed = needed | stage.reads()
            live.append(dataclasses.replace(stage, stores=stores))
    return live[::-1]


def _buffer(name: str, role: str, layout: Any, made: Stage) -> Buffer:
    shape = tuple(_integer(s) for s in layout.size)
    stride = tuple(_integer(s) for s in layout.stride)
    matrices = made.kind == "map" and len(shape) >= 2 and min(shape[-2:]) > 1
    band = band_of(made.body, *made.outer[-2:]) if matrices else None
    return Buffer(name, role, layout.dtype, shape, stride, band)


def _outputs(graph: GraphLowering) -> list[tuple[str, Any]]:
    result = []
    for output in graph.graph_outputs:
        layout = output.get_layout()
        if _integer(layout.offset) != 0:
            raise Unsupported("output that is a view at an offset")
        result.append((output.get_name(), layout))
    return result


def lower(task: Task) -> LoweredRegion:
    """Lower ``task`` to stages.

    Raises:
        Unsupported: the region holds something that is no loop nest (an external kernel, a view at an
            offset as output, an unknown reduction), with the reason.
    """
    return lower_graph(task, build_graph(dataclasses.replace(task, target="cpu")))


def lower_graph(task: Task, module: torch.fx.GraphModule) -> LoweredRegion:
    """As `lower`, from the graph that stands for ``task`` on the cpu; it is changed."""
    expand(module.graph, task.target)
    _promise_strides(module.graph, task)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    fakes = [n.meta["val"] for n in placeholders]
    with inductor_config.patch(_LOWERING_CONFIG):
        graph = _RegionLowering(module, example_inputs=fakes, is_inference=True)
        graph.meant_for = task.target
        fake_mode = fakes[0].fake_mode if fakes else None
        with V.set_graph_handler(graph), V.set_fake_mode(fake_mode):
            graph.run(*fakes)
            return _read(graph, task)


def _promise_strides(graph: torch.fx.Graph, task: Task) -> None:
    """Have Inductor lay outputs out as the task says, whatever eager would do."""
    (output,) = graph.find_nodes(op="output")
    output.meta["original_output_strides"] = [spec.stride for spec in task.output_specs]
    output.meta["user_visible_output_idxs"] = list(range(len(task.output_specs)))


def _read(graph: GraphLowering, task: Task) -> LoweredRegion:
    inputs = tuple(graph.graph_input_names)
    outputs = _outputs(graph)
    buffers: dict[str, Buffer] = {}
    for name, spec in zip(inputs, task.inputs, strict=True):
        buffers[name] = Buffer(name, "input", getattr(torch, spec.dtype), spec.shape, spec.stride)
    stages = []
    for b in graph.buffers:
        if not isinstance(b, ir.ComputedBuffer):
            raise Unsupported(_why_external(b))
        if hasattr(b.layout, "target") or not isinstance(
            b.layout, ir.FixedLayout | ir.FlexibleLayout
        ):
            raise Unsupported(f"buffer with layout {type(b.layout).__name__}")
        stages.append(_dividing_from_zero(_stage(b)))
        _refuse_checks(stages[-1].body, task.target)
        buffers[b.get_name()] = _buffer(b.get_name(), "temporary", b.layout, stages[-1])
    if graph.constants:
        raise Unsupported("constants captured by value")
    names = _place_outputs(outputs, task, buffers, inputs)
    stages = [
        _narrowed(_checked(s, buffers, task.target))
        for s in _drop_dead(_merge_welford(stages), set(names))
    ]
    used = set(names) | set(inputs) | {b for s in stages for b in s.writes()}
    return LoweredRegion(
        tuple(stages), {n: b for n, b in buffers.items() if n in used}, inputs, names
    )


def _why_external(buffer: ir.Buffer) -> str:
    """Whose kernel Inductor calls in the place of loops."""
    operator = getattr(buffer, "op_overload", None)
    if operator in running.EXTREMES:  # which Inductor has loops for on cuda alone
        return f"{operator}, a scan of values of 64 bits with their places"
    if isinstance(buffer, ir.FallbackKernel) and operator is not None:
        return f"{operator}, which Inductor leaves to eager's own kernel"
    return f"external kernel {type(buffer).__name__}"


def _checked(stage: Stage, buffers: dict[str, Buffer], target: str) -> Stage:
    """The stage with operators that are printed for the types that they meet. Raises Unsupported where one is not."""
    types = types_of(stage.body, lambda name: buffers[name].dtype, target)
    made = made_defined if target == "cuda" else made_safe
    return dataclasses.replace(stage, body=made(stage.body, types))


def _refuse_checks(body: Body, target: str) -> None:
    """On cuda an index out of range stops the kernel, and with it the context, as in eager mode; on the cpu eager mode
    raises what can be caught, and so does Inductor's code, which a kernel of ours could not."""
    if target == "cpu" and any(i.op == PLACE and i.operands[2] for i in body.walk()):
        raise Unsupported("data-dependent indexing, which is left to Inductor's bounds checks")


def _place_outputs(
    outputs: list[tuple[str, Any]], task: Task, buffers: dict[str, Buffer], inputs: tuple[str, ...]
) -> tuple[str, ...]:
    names: list[str] = []
    for (name, layout), spec in zip(outputs, task.output_specs, strict=True):
        if name in inputs:
            raise Unsupported("output that is an input")
        if name in names:
            raise Unsupported("one buffer returned twice")
        got = tuple(_integer(s) for s in layout.size), tuple(_integer(s) for s in layout.stride)
        if got[0] != spec.shape or _effective(*got) != _effective(spec.shape, spec.stride):
            raise Unsupported(f"output layout {got} where {(spec.shape, spec.stride)} is wanted")
        viewed = Buffer(name, "output", getattr(torch, spec.dtype), spec.shape, spec.stride)
        if viewed.dtype != buffers[name].dtype or viewed.extent != buffers[name].extent:
            raise Unsupported("output that shows only part of a buffer")
        buffers[name] = viewed
        names.append(name)
    return tuple(names)


def _effective(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Strides of dimensions that matter; those of size-1 dimensions do not."""
    return tuple(s for n, s in zip(shape, stride, strict=True) if n != 1)
