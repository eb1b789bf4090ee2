"""Scans along a row: within a thread, then its warp, its block, its cluster, each level as a tree or nearly so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_agent_backend.sketch.cuda_frame import position_loop
from cuda_agent_backend.sketch.cuda_layout import WARP
from cuda_agent_backend.sketch.cuda_parts import BYTES, stage_dtype
from cuda_agent_backend.sketch.nest import RowStage
from cuda_agent_backend.sketch.printer import COMPUTE_TYPES
from cuda_agent_backend.sketch.ssa import Unsupported

if TYPE_CHECKING:
    from cuda_agent_backend.sketch.cuda_rows import RowWriter


def scan_pass(writer: RowWriter, number: int) -> list[str]:
    """Statements of the scan that is pass ``number``."""
    p, layout = writer.program.passes[number], writer.layout
    (stage,) = p.stages
    if len(p.inner) != 1 or stage.points != layout.points:
        raise Unsupported("scan over part of a row")
    made = {s.buffer for s in stage.local_stores} & writer.program.shared
    if made and layout.segments > 1:
        raise Unsupported("an array read across the segments of a row")
    ctype = COMPUTE_TYPES[stage_dtype(stage)]
    text = (
        _inner(writer, number, stage, ctype)
        if layout.inner
        else _outer(writer, number, stage, ctype)
    )
    return [*text, *(["__syncthreads();"] if made else [])]


def _values(writer: RowWriter, number: int, ctype: str, use: str) -> list[str]:
    """The body at one position, its value as ``value`` in statement ``use``."""
    flat = writer.program.flats[number]
    return [
        *flat.statements,
        *writer.bodies(
            number, lambda n, stage, value: [use.replace("VALUE", f"ca::to<{ctype}>({value})")]
        ),
    ]


def _inner(writer: RowWriter, number: int, stage: RowStage, ctype: str) -> list[str]:
    layout, memory = writer.layout, writer.memory
    op, width, warps = f"ca::scan_{stage.combine}", min(layout.team, WARP), layout.warps
    held = (
        layout.chunks if layout.keep == "registers" else max(1, min(layout.unroll, layout.chunks))
    )
    p, flat = writer.program.passes[number], writer.program.flats[number]
    identity = f"{op}::identity<{ctype}>()"
    at = f"const int k = base + h, q = (k * {layout.team} + t) * {layout.vector}; const {layout.index_type} j = first + q;"
    stores = writer.stores(p, flat, stage, "scanned", writer.row_guard)
    total = f"kept_total[h] = held[h].v[{layout.vector - 1}];"
    out = [
        f"constexpr int L = {layout.vector}; (void)L;",
        f"{ctype} carry = {identity};",
        f"for (int base = 0; base < {layout.chunks}; base += {held}) {{",
        f"  ca::vec<{ctype}, L> held[{held}]; {ctype} kept_total[{held}], before[{held}];",
        "#pragma unroll",
        f"  for (int h = 0; h < {held}; ++h) {{",
        f"    held[h] = ca::splat<{ctype}, L>({identity});",
        f"    {at}",
        "    if (q < limit) {",
        *[
            "      " + s
            for s in _values(writer, number, ctype, f"held[h] = ca::scan_lanes<{op}>(VALUE);")
        ],
        "    }",
        f"    {total}",
        "  }",
        "#pragma unroll",
        f"  for (int h = 0; h < {held}; ++h) {{",
        f"    kept_total[h] = ca::scan_warp<{op}, {width}>(kept_total[h]);",
        f"    before[h] = __shfl_up_sync(0xffffffffu, kept_total[h], 1, {width});",
        f"    if ((t & {width - 1}) == 0) before[h] = {identity};",
        "  }",
        *["  " + s for s in _across_warps(writer, number, ctype, op, held, warps, width)],
        "#pragma unroll",
        f"  for (int h = 0; h < {held}; ++h) {{",
        f"    {at}",
        "    if (q < limit) {",
        *["      " + s for s in flat.statements],
        f"      const auto scanned = ca::scan_join<{op}>(ca::splat<{ctype}, L>(before[h]), held[h]);",
        *["      " + s for s in stores],
        "    }",
        "  }",
        "}",
    ]
    _ = memory
    return out


def _across_warps(
    writer: RowWriter, number: int, ctype: str, op: str, held: int, warps: int, width: int
) -> list[str]:
    """``before[h]`` grows by all that goes before this warp's part, and ``carry`` by the whole."""
    layout, memory = writer.layout, writer.memory
    looped = held < layout.chunks
    if writer.layout.clustered and looped:
        raise Unsupported("a scan across a cluster whose segments do not stay in registers")
    if warps == 1 and not writer.layout.clustered:
        return [
            "#pragma unroll",
            f"for (int h = 0; h < {held}; ++h) {{",
            f"  before[h] = {op}::join(carry, before[h]);",
            f"  carry = {op}::join(carry, __shfl_sync(0xffffffffu, kept_total[h], {width - 1}, {width}));",
            "}",
        ]
    count = held * warps
    memory.take(f"totals{number}", ctype, count * layout.across, BYTES[ctype])
    memory.take(f"whole{number}", ctype, layout.across * max(1, layout.segments), BYTES[ctype])
    slots, whole = f"(totals{number} + r * {count})", f"whole{number}"
    out = [
        f"if ((t & 31) == 31) {{ for (int h = 0; h < {held}; ++h) {slots}[h * {warps} + t / 32] = kept_total[h]; }}",
        "__syncthreads();",
        "if (t < 32) {",
        f"  const {ctype} all = ca::scan_shared<{op}, {count}>({slots});",
    ]
    if writer.layout.clustered:
        words = "ca::sum_acc" if BYTES[ctype] >= 4 else ""
        if not words:
            raise Unsupported("a scan of small integers across a cluster")
        out += [
            f"  if (t < {layout.segments}) ca::store_remote({whole} + segment, t, all);",
            "}",
            "ca::cluster_arrive();",
            "ca::cluster_wait();",
            f"for (int c = 0; c < segment; ++c) carry = {op}::join(carry, {whole}[c]);",
        ]
    else:
        out += [f"  if (t == 0) {whole}[r] = all;", "}", "__syncthreads();"]
    out += [
        "#pragma unroll",
        f"for (int h = 0; h < {held}; ++h)",
        f"  before[h] = {op}::join(carry, {op}::join({slots}[h * {warps} + t / 32], before[h]));",
    ]
    if looped:
        out += [f"carry = {op}::join(carry, {whole}[r]);", "__syncthreads();"]
    return out


def _outer(writer: RowWriter, number: int, stage: RowStage, ctype: str) -> list[str]:
    layout, memory = writer.layout, writer.memory
    op, identity = f"ca::scan_{stage.combine}", f"ca::scan_{stage.combine}::identity<{ctype}>()"
    p, flat = writer.program.passes[number], writer.program.flats[number]
    lanes = f"constexpr int L = {layout.vector}; (void)L;"
    stores = writer.stores(p, flat, stage, "scanned", writer.row_guard)
    alone = layout.team == 1 and not writer.layout.clustered
    start = [lanes, f"auto run = ca::splat<{ctype}, L>({identity});"]
    forward = f"run = ca::scan_join<{op}>(run, VALUE);"
    if alone:
        body = _values(writer, number, ctype, forward)
        return [
            *start,
            "{",
            *position_loop(layout, [*body, "const auto scanned = run;", *stores]),
            "}",
        ]
    registers = layout.keep == "registers"
    if registers:
        start.append(f"ca::vec<{ctype}, L> held[{layout.chunks}];")
    first = _values(writer, number, ctype, forward + (" held[k] = run;" if registers else ""))
    out = [*start, *position_loop(layout, first)]
    lane_bytes = BYTES[ctype] * layout.vector
    kind = f"ca::vec<{ctype}, {layout.vector}>"
    memory.take(f"totals{number}", kind, layout.team * layout.across, lane_bytes)
    out += [
        f"totals{number}[t * {layout.across} + x] = run;",
        "__syncthreads();",
        f"auto before = ca::splat<{ctype}, L>({identity});",
    ]
    if writer.layout.clustered:
        memory.take(f"whole{number}", kind, layout.segments * layout.across, lane_bytes)
        out += [
            f"if (t == {layout.team - 1}) {{",
            f"  auto all = totals{number}[x];",
            f"  for (int c = 1; c < {layout.team}; ++c) all = ca::scan_join<{op}>(all, totals{number}[c * {layout.across} + x]);",
            f"  for (int c = 0; c < {layout.segments}; ++c) ca::store_remote(whole{number} + segment * {layout.across} + x, c, all);",
            "}",
            "ca::cluster_arrive();",
            "ca::cluster_wait();",
            f"for (int c = 0; c < segment; ++c) before = ca::scan_join<{op}>(before, whole{number}[c * {layout.across} + x]);",
        ]
    out.append(
        f"for (int c = 0; c < t; ++c) before = ca::scan_join<{op}>(before, totals{number}[c * {layout.across} + x]);"
    )
    if registers:
        second = [
            "const auto scanned = ca::scan_join<" + op + ">(before, held[k]);",
            *flat.statements,
            *stores,
        ]
    else:
        second = [
            *_values(writer, number, ctype, f"before = ca::scan_join<{op}>(before, VALUE);"),
            "const auto scanned = before;",
            *stores,
        ]
    return [*out, *position_loop(layout, second)]
