"""What compute-sanitizer says of a kernel on a GPU, but for what its racecheck is known to misread."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing
from sandbox.plan.candidate import Candidate
from sandbox.sanitizer.tool import find_sanitizer, sanitize

MISREAD = re.compile(r"ca::relay_contraction<64, \d+, \d+, \d+, \d+, 0,")
"""GEMMs in which one half of a block prepares for the other, with a barrier of its own. `test_racecheck_gpu` shows what
racecheck then takes for a race."""


def assert_clean(
    built: Compiled, made: Candidate, inputs: Sequence[torch.Tensor], told: Any = ""
) -> None:
    """Have all tools look at a kernel. told: what a failure names. Nothing is asked where there is no sanitizer."""
    if isinstance(find_sanitizer(), Missing):
        return
    found = sanitize(built.path, made.plan, lambda: list(inputs))
    misread = MISREAD.search(made.source) is not None
    wrong = [
        report
        for report in found
        if report.status != "clean"
        and not (misread and (report.tool, report.status) == ("racecheck", "errors"))
    ]
    assert not wrong, (told, wrong)
