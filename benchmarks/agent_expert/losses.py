"""A loss in Triton: a softmax-like kernel over classes, then means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.agent_expert.script import KERNELS, Unfit, Version, ceildiv, dense, plan_of
from sandbox.task.task import Task


def cross_entropy_of_pixels(task: Task) -> Sequence[Version]:
    """228 MB of logits and 24 MB of targets: 61 us. Inductor's 345 us read the logits three times, for the maximum,
    the sum and the gather, along a dimension with a stride. Here a tile of pixels has all its 19 classes in
    registers."""
    order = sorted(range(3), key=lambda n: task.inputs[n].numel)
    weights, targets, logits = order
    batch, classes, *sides = dense(task.inputs[logits])
    pixels = math.prod(sides)
    if task.inputs[targets].numel != batch * pixels or task.inputs[weights].numel != classes:
        raise Unfit("logits, a target for each pixel and class weights are wanted")
    if task.inputs[targets].dtype != "int64" or task.output_specs[0].numel != batch:
        raise Unfit("targets in int64 and a result for each image are wanted")
    names = [f"in{n}" for n in (targets, logits, weights)]
    first = 1 << (classes.bit_length() - 1)
    rest = {"FIRST": first, "REST": 1 << max(0, classes - first - 1).bit_length()}
    versions = []
    for file, block, warps, say in (
        ("pixel_losses_naive.py", 256, 4, "Two loops over the classes, to have something right."),
        (
            "pixel_losses.py",
            512,
            4,
            "All classes of a tile in registers: every logit is read once.",
        ),
        ("pixel_losses.py", 256, 4, "Two pixels a thread: fewer registers, more blocks."),
        ("pixel_losses.py", 512, 8, "The same with tiles as before."),
    ):
        tiles = ceildiv(pixels, block)
        sizes = {"PIXELS": pixels, "CLASSES": classes, "BLOCK": block}
        more = {} if "naive" in file else rest
        steps = [
            _step("losses", [tiles, batch, 1], [*names, "partial"], {**sizes, **more}, warps),
            _step("means", [batch, 1, 1], ["partial", "out0"],
                  {"PIXELS": pixels, "TILES": tiles, "BLOCK": 1 << (tiles - 1).bit_length()}, 4),
        ]  # fmt: skip
        source = (KERNELS / file).read_text(encoding="utf-8")
        plan = plan_of(task, steps, {"partial": batch * tiles})
        versions.append(Version(say, "naive.py" if "naive" in file else "fast.py", source, plan))
    return versions


def _step(
    kernel: str, grid: list[int], args: list[str], constants: Mapping[str, int], warps: int
) -> dict[str, Any]:
    return {"kind": "triton", "kernel": kernel, "grid": grid, "args": args,
            "constexprs": dict(constants), "num_warps": warps}  # fmt: skip
