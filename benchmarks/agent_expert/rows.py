"""Rows: scans, a scaling in disguise, products of small matrices."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.agent_expert.script import (
    Unfit,
    Version,
    ceildiv,
    dense,
    folded,
    plan_of,
    source_of,
    step,
)
from sandbox.task.task import Task


def running_maximum(task: Task) -> Sequence[Version]:
    """180 MB each way: 86 us. Inductor's 400 us and eager's 508 us scan values with their positions, which nobody
    asked for, in several passes. A row of 36 KB fits in its block's registers: it is read once and written once."""
    rows, columns = folded(dense(task.inputs[0]), 1)
    if columns % 4:
        raise Unfit(f"rows of {columns}")
    sizes = {"ROWS": rows, "COLUMNS": columns}
    versions = []
    for file, threads, say in (
        ("running_maximum_naive.cu", 256, "Tile by tile along the row, to have something right."),
        (
            "running_maximum.cu",
            256,
            "The whole row in registers; warps scan side by side and meet once.",
        ),
        ("running_maximum.cu", 384, "More threads with fewer values each."),
        ("running_maximum.cu", 192, "Fewer threads, whose blocks overlap better."),
    ):
        source = source_of(file, {**sizes, "THREADS": threads})
        plan = plan_of(task, [step("running_maximum", rows, threads, ("in0", "out0"))])
        versions.append(Version(say, _file(file), source, plan))
    return versions


def cumsum(task: Task) -> Sequence[Version]:
    """234 MB each way: 111 us; with a second read of what is no longer in the L2 cache 160 us. Inductor takes 360
    us, eager 743 us: 130 rows are one block each for 132 multiprocessors. Chunks of rows keep all of them busy."""
    rows, columns = folded(dense(task.inputs[0]), 1)
    if columns % 4:
        raise Unfit(f"rows of {columns}")
    versions = []
    for file, chunk, threads, say in (
        (
            "cumsum_naive.cu",
            9000,
            256,
            "Chunks of rows in two kernels, tile by tile, to have something right.",
        ),
        (
            "cumsum.cu",
            9000,
            256,
            "A chunk in registers, in words of 16 bytes; the second kernel goes backwards.",
        ),
        ("cumsum.cu", 18000, 512, "Longer chunks: fewer sums to add up before each."),
        ("cumsum.cu", 4500, 128, "Shorter chunks in smaller blocks."),
    ):
        sizes = {"ROWS": rows, "COLUMNS": columns, "CHUNK": chunk, "THREADS": threads}
        blocks = rows * ceildiv(columns, chunk)
        steps = [
            step("chunk_sums", blocks, threads, ("in0", "sums")),
            step("running_sums", blocks, threads, ("in0", "sums", "out0")),
        ]
        plan = plan_of(task, steps, {"sums": blocks})
        versions.append(Version(say, _file(file), source_of(file, sizes), plan))
    return versions


def diagonal(task: Task) -> Sequence[Version]:
    """108 MB each way: 52 us. Eager and Inductor write the matrix out and multiply, 3740 us. Only a scaling of
    columns is left of it, but for rows with NaN and infinities, which the zeros beside the diagonal spread."""
    scales, x = sorted(range(2), key=lambda n: task.inputs[n].numel)
    rows, columns = dense(task.inputs[x])
    if task.inputs[scales].numel != columns or columns % 4:
        raise Unfit(f"{task.inputs[scales]} for rows of {columns}")
    versions = []
    for file, threads, say in (
        (
            "diagonal_naive.cu",
            256,
            "A scaling, with a look at the row first for what is not finite.",
        ),
        ("diagonal.cu", 256, "The row stays in registers between the look and the scaling."),
        ("diagonal.cu", 128, "Half the threads with twice the loads under way each."),
        ("diagonal.cu", 192, "In between."),
    ):
        source = source_of(file, {"ROWS": rows, "COLUMNS": columns, "THREADS": threads})
        plan = plan_of(
            task, [step("scale_columns", rows, threads, (f"in{x}", f"in{scales}", "out0"))]
        )
        versions.append(Version(say, _file(file), source, plan))
    return versions


def small_products(task: Task) -> Sequence[Version]:
    """276 MB in all: 66 us; 0.9 GFLOP are nothing. The library takes 183 us, for tiles of sixteen and more that
    17x23 by 23x19 fill badly. Here eight products' operands are copied as one run, and twelve threads make a
    product."""
    (batch, rows, inner), (_, _, columns) = (dense(spec) for spec in task.inputs)
    sizes = {"BATCH": batch, "ROWS": rows, "INNER": inner, "COLUMNS": columns}
    if batch % 8 or rows * columns > inner * (rows + columns):
        raise Unfit(f"{batch} products")
    io = ("in0", "in1", "out0")
    grid = ceildiv(batch * rows * columns, 256)
    naive = source_of("small_products_naive.cu", {**sizes, "THREADS": 256})
    first = plan_of(task, [step("products", grid, 256, io)])
    say = "One thread for each result, to have something right."
    versions = [Version(say, "naive.cu", naive, first)]
    for together, high, wide, say in (
        (8, 6, 5, "Operands through shared memory, tiles of 6x5 in registers."),
        (4, 6, 5, "Fewer products a block: more blocks at once."),
        (8, 5, 4, "Smaller tiles: more threads."),
    ):
        threads = ceildiv(together * ceildiv(rows, high) * ceildiv(columns, wide), 32) * 32
        tuned = {**sizes, "TOGETHER": together, "HIGH": high, "WIDE": wide, "THREADS": threads}
        plan = plan_of(task, [step("products", batch // together, threads, io)])
        versions.append(Version(say, "fast.cu", source_of("small_products.cu", tuned), plan))
    return versions


def _file(kernel: str) -> str:
    return "naive.cu" if "naive" in kernel else "fast.cu"
