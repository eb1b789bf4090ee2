"""Row kernels whose rows are spread over many blocks that meet by launching again.

Every reduction or scan over the row ends a launch: its blocks leave partial results in memory, and whatever needs the
whole result joins them first. A scan is done in the launch after that. Scalars of a row are computed again in each
launch that needs them; arrays are not kept.
"""

from __future__ import annotations

from dataclasses import replace

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.parts import Emitted, partial_buffers
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.program import RowProgram, is_full
from cuda_agent_backend.codegen.cuda.rows.row_writer import Item, RowWriter
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, WARP, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from sandbox.plan.plan import Buffer as PlanBuffer
from sandbox.plan.plan import Launch


def emit_split(
    region: LoweredRegion, layout: Layout, program: RowProgram, name: str, device: DeviceFacts
) -> Emitted:
    """Raises Unsupported where a pass cannot be cut."""
    if any(p.inner and not is_full(p, layout.points) for p in program.passes):
        raise Unsupported("a split row with loops over part of it")
    functions: list[str] = []
    launches: list[Launch] = []
    temporaries: dict[str, PlanBuffer] = {}
    for number, items in enumerate(launches_of(program.passes)):
        finishing = not any(
            what in ("pass", "partial") and program.passes[n].inner for what, n in items
        )
        own = combining_layout(layout) if finishing else layout
        writer = RowWriter(region, own, program, device, layout.segments)
        parameters, names = [], []
        for what, n in items:
            scans = program.passes[n].kind == "scan"
            if what == "pass" and not scans:
                continue
            for parameter, ctype, buffer in partial_buffers(
                name,
                writer.scan_totals(n) if scans else writer.reductions(n),
                layout.rows * layout.segments,
            ):
                const = "" if what == "partial" else "const "
                parameters.append(f"{const}{ctype}* __restrict__ {parameter}")
                names.append(buffer.name)
                temporaries[buffer.name] = buffer
        text, launch = writer.function(f"{name}_{number}", items, parameters)
        functions.append(text)
        launches.append(replace(launch, args=(*launch.args, *names)))
    return Emitted(tuple(functions), tuple(launches), tuple(temporaries.values()))


def _reads(p: Pass) -> set[str]:
    return {
        i.buffer
        for s in p.stages
        for i in s.body.walk()
        if i.op == "local" and i.buffer is not None
    }


def _made(p: Pass) -> set[str]:
    return {s.buffer for st in p.stages for s in st.local_stores}


def launches_of(grouped: tuple[Pass, ...]) -> list[list[Item]]:
    """What each launch does, in order. A reduction is "partial" in one and "combine" in those after it."""
    cuts = [n for n, p in enumerate(grouped) if p.kind in ("reduce", "scan")]
    result, low = [], 0
    for cut in (*cuts, len(grouped)):
        items: list[Item] = [("partial", cut)] if cut < len(grouped) else []
        needed = _reads(grouped[cut]) if items else set()
        for n in range(cut - 1, -1, -1):
            p = grouped[n]
            stores = n >= low and any(s.stores for s in p.stages)
            if p.kind == "reduce":
                stores = n == low - 1 and any(s.stores for s in p.stages if s.kind == "reduce")
            elif p.inner and n < low:
                continue  # done by an earlier launch
            if stores or _made(p) & needed:
                items.append(("combine" if p.kind == "reduce" else "pass", n))
                needed |= _reads(p)
        if items:
            result.append(items[::-1])
        low = cut + (cut < len(grouped) and grouped[cut].kind == "reduce")
    return result


def combining_layout(layout: Layout) -> Layout:
    """The layout of a launch that only joins partial results and works on scalars."""
    if layout.inner:
        wanted = min(MAX_THREADS, max(WARP, ceildiv(layout.segments, 4)))
        team = 1 << (wanted - 1).bit_length()
        return replace(
            layout,
            segments=1,
            exchange="block",
            team=team,
            across=max(1, 128 // team),
            vector=1,
            blocks=1,
        )
    team = 1 << max(0, min(5, (layout.segments // 4).bit_length() - 1))
    return replace(
        layout, segments=1, exchange="block", team=team, across=WARP, vector=1, blocks=1, square=0
    )
