"""What compute-sanitizer says of a kernel on a GPU, but for what its racecheck is known to misread."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing
from sandbox.plan.candidate import Candidate
from sandbox.sanitizer.tool import ToolReport, find_sanitizer, sanitize

MISREAD = re.compile(r"ca::relay_contraction<64, \d+, \d+, \d+, \d+, 0,")
"""GEMMs in which one half of a block prepares for the other, with a barrier of its own. `test_racecheck_gpu` shows what
racecheck then takes for a race."""


KERNEL = re.compile(r'extern "C" __global__ void[^;{]*?\b(k\w+)\(')


def relays(source: str) -> set[str]:
    """The kernels of a source that have such a GEMM."""
    starts = list(KERNEL.finditer(source))
    ends = [*(start.start() for start in starts[1:]), len(source)]
    return {
        start.group(1)
        for start, end in zip(starts, ends, strict=True)
        if MISREAD.search(source, start.end(), end)
    }


def is_misread(report: ToolReport, source: str) -> bool:
    """Whether all that a tool found are races in such kernels."""
    named = set(re.findall(r"\b(\w+)\+0x", report.detail))
    is_race = (report.tool, report.status) == ("racecheck", "errors")
    return is_race and bool(named) and named <= relays(source)


def assert_clean(
    built: Compiled, made: Candidate, inputs: Sequence[torch.Tensor], told: Any = ""
) -> None:
    """Have all tools look at a kernel. told: what a failure names. Nothing is asked where there is no sanitizer."""
    if isinstance(find_sanitizer(), Missing):
        return
    found = sanitize(built.path, made.plan, lambda: list(inputs))
    wrong = [r for r in found if r.status != "clean" and not is_misread(r, made.source)]
    assert not wrong, (told, wrong)
