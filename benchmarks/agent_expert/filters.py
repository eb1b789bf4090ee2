"""Filters of single channels (depthwise convolutions) in one, two and three dimensions.

torch's own kernels take one thread for each result and read every value as often as the filter has taps. A tap beside
the image is no term there, which counts where a weight is infinite; the kernels do as much.
"""

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


def filter_rows(task: Task) -> Sequence[Version]:
    """230 MB each way: 110 us; 3.6 GFLOP are 60 us. torch's kernel takes 981 us for 31 reads per result. Here a
    tile of the row is in shared memory, 31 taps in registers, and nine words of 16 bytes serve four results: 124
    FMA per nine reads."""
    (rows, length), taps = folded(dense(task.inputs[0]), 1), dense(task.inputs[1])[-1]
    if length % 4 or dense(task.inputs[1]) != (rows // _batch(task), 1, taps) or taps % 2 == 0:
        raise Unfit("rows of whole words and odd filters are wanted")
    sizes = {"ROWS": rows, "CHANNELS": rows // _batch(task), "LENGTH": length, "TAPS": taps}
    versions = [_naive(task, "filter1d", "filter_rows", sizes, rows * length)]
    for tile, threads, say in (
        (
            4000,
            256,
            "A tile of the row in shared memory, the taps in registers, four results at a time.",
        ),
        (2000, 256, "Smaller tiles: more blocks at once."),
        (10000, 256, "Larger tiles: less is read twice, taps are fetched less often."),
    ):
        tuned = {**sizes, "TILE": tile, "THREADS": threads}
        plan = plan_of(
            task, [step("filter_rows", rows * ceildiv(length, tile), threads, _io(task))]
        )
        versions.append(Version(say, "fast.cu", source_of("filter1d.cu", tuned), plan))
    return versions


def filter_planes(task: Task) -> Sequence[Version]:
    """97 MB each way: 46 us; 3.9 GFLOP are 66 us. torch's kernel takes 1210 us, Inductor, with copies to another
    layout, 4990 us. Here a thread keeps 20 results in registers and uses each value that it reads up to 45
    times."""
    (planes, height, width), shape = folded(dense(task.inputs[0]), 2), dense(task.inputs[1])
    if shape != (planes // _batch(task), 1, 9, 9) or width % 2:
        raise Unfit("filters of 9x9 and an even width are wanted")
    sizes = {"PLANES": planes, "CHANNELS": shape[0], "HEIGHT": height, "WIDTH": width, "TAPS": 9}
    versions = [_naive(task, "filter2d", "filter_planes", sizes, planes * height * width)]
    words = ceildiv(width, 4)
    for strip, high, blocks, say in (
        (65, 5, 2, "A strip in shared memory, twenty results a thread."),
        (40, 5, 3, "Shorter strips: more blocks at once."),
        (44, 4, 3, "Four rows a thread: fewer registers, more threads."),
    ):
        threads = ceildiv(words * (strip // high), 32) * 32
        tuned = {**sizes, "STRIP": strip, "HIGH": high, "THREADS": threads, "BLOCKS": blocks}
        shared = 4 * (strip + 8) * (4 * words + 8)
        grid = planes * ceildiv(height, strip)
        plan = plan_of(task, [step("filter_planes", grid, threads, _io(task), shared=shared)])
        versions.append(Version(say, "fast.cu", source_of("filter2d.cu", tuned), plan))
    return versions


def filter_planes_by_two(task: Task) -> Sequence[Version]:
    """290 MB read, 145 MB written: 104 us; 1.8 GFLOP are 30 us. torch's kernel takes 640 us, Inductor 5020 us
    through copies to another layout. Here both filters of a channel use what is read, and ten results are kept in
    registers."""
    (planes, height, width), shape = folded(dense(task.inputs[0]), 2), dense(task.inputs[1])
    _, out_height, out_width = folded(dense(task.output_specs[0]), 2)
    if shape != (2 * (planes // _batch(task)), 1, 5, 5) or width % 2:
        raise Unfit("two filters of 5x5 a channel and an even width are wanted")
    sizes = {"PLANES": planes, "CHANNELS": shape[0] // 2, "HEIGHT": height, "WIDTH": width,
             "OUT_HEIGHT": out_height, "OUT_WIDTH": out_width}  # fmt: skip
    results = 2 * planes * out_height * out_width
    versions = [_naive(task, "filter2d_strided", "filter_planes", sizes, results)]
    for high, groups, blocks, say in (
        (5, 3, 2, "A strip in shared memory, both filters in registers, ten results a thread."),
        (5, 2, 4, "Smaller blocks."),
        (3, 4, 2, "Six results a thread."),
    ):
        threads = ceildiv(out_width * groups, 32) * 32
        tuned = {**sizes, "HIGH": high, "GROUPS": groups, "THREADS": threads, "BLOCKS": blocks}
        grid = planes * ceildiv(out_height, high * groups)
        plan = plan_of(task, [step("filter_planes", grid, threads, _io(task))])
        versions.append(Version(say, "fast.cu", source_of("filter2d_strided.cu", tuned), plan))
    return versions


def filter_volumes(task: Task) -> Sequence[Version]:
    """80 MB each way: 38 us; 1.8 GFLOP are 30 us. torch's kernel takes 1014 us for 45 reads per result with as many
    tests. Here a block goes through the planes, reads each once, and a value is used 45 times, in registers
    mostly."""
    (volumes, depth, height, width), shape = folded(dense(task.inputs[0]), 3), dense(task.inputs[1])
    if shape != (volumes // _batch(task), 1, 5, 3, 3) or width % 4:
        raise Unfit("filters of 5x3x3 and rows of whole words are wanted")
    sizes = {
        "VOLUMES": volumes,
        "CHANNELS": shape[0],
        "DEPTH": depth,
        "HEIGHT": height,
        "WIDTH": width,
    }
    versions = [_naive(task, "filter3d", "filter_volumes", sizes, volumes * depth * height * width)]
    for strip, blocks, say in (
        (18, 2, "Go through the planes with five planes of results in registers."),
        (12, 3, "Shorter strips: more blocks at once."),
        (8, 4, "Shorter still."),
    ):
        tuned = {**sizes, "STRIP": strip, "BLOCKS": blocks}
        grid, threads = volumes * ceildiv(height, strip), width // 4 * strip
        plan = plan_of(task, [step("filter_volumes", grid, threads, _io(task))])
        versions.append(Version(say, "fast.cu", source_of("filter3d.cu", tuned), plan))
    return versions


def _naive(task: Task, file: str, kernel: str, sizes: dict[str, int], results: int) -> Version:
    source = source_of(f"{file}_naive.cu", {**sizes, "THREADS": 256})
    plan = plan_of(task, [step(kernel, ceildiv(results, 256), 256, _io(task))])
    return Version("One thread for each result, to have something right.", "naive.cu", source, plan)


def _io(task: Task) -> list[str]:
    return [*(f"in{n}" for n in range(len(task.inputs))), "out0"]


def _batch(task: Task) -> int:
    return task.inputs[0].shape[0]
