"""Windows that overlap: averages and maxima over neighbours."""

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

IO = ("in0", "out0")


def box_filter(task: Task) -> Sequence[Version]:
    """386 MB read and written, 92 us at 4.2 TB/s. Eager and Inductor both run torch's kernel, 1240 us: each result
    adds up 49 values that are read anew. The sums are separable (14 additions), a strip of the image is read once
    and neighbours share sums in shared memory."""
    planes, height, width = folded(dense(task.inputs[0]), 2)
    if width % 2 or width > 256:
        raise Unfit(f"rows of {width}")
    sizes = {"PLANES": planes, "HEIGHT": height, "WIDTH": width}
    first = _each("box_filter", task, sizes, planes * height * width)
    versions = [Version("One thread per result first, to have something right.", *first)]
    sayings = {
        42: "Sums along rows through shared memory, of which the last seven stay in registers.",
        70: "Longer strips: fewer rows are read twice.",
        28: "Shorter strips: more blocks to hide what loads take.",
    }
    for strip, say in sayings.items():
        tuned = {**sizes, "STRIP": strip, "THREADS": 128}
        plan = plan_of(task, [step("box_filter", planes * ceildiv(height, strip), 128, IO)])
        versions.append(Version(say, "fast.cu", source_of("box_filter.cu", tuned), plan))
    return versions


def max_pool3d(task: Task) -> Sequence[Version]:
    """225 MB read, 28 MB written: 60 us. Inductor's 237 us go into 27 reads per result with a test of borders for each,
    eager's 283 us into the same with positions that nobody asked for. A thread that goes through the planes reads
    every plane once, three words of 16 bytes for two results."""
    volumes, depth, height, width = folded(dense(task.inputs[0]), 3)
    _, out_depth, out_height, out_width = folded(dense(task.output_specs[0]), 3)
    sizes = {"VOLUMES": volumes, "DEPTH": depth, "HEIGHT": height, "WIDTH": width,
             "OUT_DEPTH": out_depth, "OUT_HEIGHT": out_height, "OUT_WIDTH": out_width}  # fmt: skip
    first = _each(
        "max_pool", task, sizes, volumes * out_depth * out_height * out_width, "max_pool3d"
    )
    versions = [Version("27 reads for each result, to have something right.", *first)]
    for planes, ahead, say in (
        (
            5,
            1,
            "Go through the planes and keep the maxima of the last one: each plane is read once.",
        ),
        (10, 2, "Longer ways through the planes, with two results' loads under way."),
        (4, 2, "Shorter ways: more threads to hide what loads take."),
    ):
        tuned = {**sizes, "PLANES_OUT": planes, "AHEAD": ahead, "THREADS": 128}
        threads = volumes * ceildiv(out_depth, planes) * out_height * (width // 4)
        plan = plan_of(task, [step("max_pool", ceildiv(threads, 128), 128, IO)])
        versions.append(Version(say, "fast.cu", source_of("max_pool3d.cu", tuned), plan))
    return versions


def avg_pool3d(task: Task) -> Sequence[Version]:
    """259 MB read, 14 MB written: 66 us. Eager and Inductor run torch's kernel, 277 us: it reads with gaps of
    three, and every plane twice. Here a thread reads words of 16 bytes and the sum of two planes serves two
    results."""
    volumes, depth, height, width = folded(dense(task.inputs[0]), 3)
    _, out_depth, out_height, out_width = folded(dense(task.output_specs[0]), 3)
    sizes = {"VOLUMES": volumes, "DEPTH": depth, "HEIGHT": height, "WIDTH": width,
             "OUT_DEPTH": out_depth, "OUT_HEIGHT": out_height, "OUT_WIDTH": out_width}  # fmt: skip
    first = _each(
        "avg_pool", task, sizes, volumes * out_depth * out_height * out_width, "avg_pool3d"
    )
    versions = [Version("36 reads for each result, to have something right.", *first)]
    for planes, ahead, say in (
        (6, 1, "Four results a thread in words of 16 bytes; sums of two planes are used twice."),
        (12, 1, "Longer ways through the planes: fewer planes are read twice."),
        (4, 2, "Shorter ways, with two results' loads under way."),
    ):
        tuned = {**sizes, "PLANES_OUT": planes, "AHEAD": ahead, "THREADS": 128}
        threads = volumes * ceildiv(out_depth, planes) * out_height * ceildiv(out_width, 4)
        plan = plan_of(task, [step("avg_pool", ceildiv(threads, 128), 128, IO)])
        versions.append(Version(say, "fast.cu", source_of("avg_pool3d.cu", tuned), plan))
    return versions


def avg_pool1d(task: Task) -> Sequence[Version]:
    """230 MB read, 115 MB written: 83 us. Inductor's 177 us are eleven reads for each result, with a test of
    borders for each and every second value of a line; eager takes 320 us. Five words of 16 bytes make four results
    here."""
    rows, length = folded(dense(task.inputs[0]), 1)
    _, out_length = folded(dense(task.output_specs[0]), 1)
    sizes = {"ROWS": rows, "LENGTH": length, "OUT_LENGTH": out_length}
    first = _each("avg_pool", task, sizes, rows * out_length, "avg_pool1d")
    versions = [Version("Eleven reads for each result, to have something right.", *first)]
    for each, threads, say in (
        (1, 256, "Four results a thread, from words of 16 bytes."),
        (2, 256, "Two such groups a thread, their loads under way together."),
        (2, 128, "The same in smaller blocks."),
    ):
        tuned = {**sizes, "EACH": each, "THREADS": threads}
        grid = ceildiv(rows * out_length // 4, threads * each)
        plan = plan_of(task, [step("avg_pool", grid, threads, IO)])
        versions.append(Version(say, "fast.cu", source_of("avg_pool1d.cu", tuned), plan))
    return versions


def _each(
    kernel: str, task: Task, sizes: dict[str, int], results: int, file: str = ""
) -> tuple[str, str, str]:
    """File name, source and plan of a naive kernel with one thread for each result."""
    source = source_of(f"{file or kernel}_naive.cu", {**sizes, "THREADS": 256})
    return "naive.cu", source, plan_of(task, [step(kernel, ceildiv(results, 256), 256, IO)])
