"""How a judge is set that measures tables: what it may take of time and memory for them."""

from __future__ import annotations

from pathlib import Path

from sandbox.judge.settings import JudgeSettings, Timeouts
from sandbox.judge.survey import SurveyEffort
from trainer.world.ahead import Deadline

EFFORTS = {
    "cuda": SurveyEffort(),
    "cpu": SurveyEffort(rounds=12, close=((1.25, 24), (1.06, 40)), again=64),
}
"""On cpu a pair scatters by 20 %: of leaders chosen by eight pairs, eight others said 6.5 % less. Compiling takes seven
seconds a table at the median and timing half a second, so there is time for more."""
SECONDS = {"cuda": {"prepare": 90.0, "compile": 60.0, "run": 8.0}, "cpu": {}}
"""Of the judge's limits, where they are others than usual: a schedule that hangs holds a card that others share."""
KEPT_SHARE = 1 / 16
"""Of a GPU's memory, what may be kept of a region between its many candidates."""
NEVER = 1 << 62
"""Bytes of inputs and outputs from which the judge is sparing of memory: more than there are. Tensors are too small for
that: it would draw and compare anew for each candidate."""


def judge_settings(
    target: str, scratch: Path | str, native: Path | None, arch: str, lock: Path, deadline: Deadline
) -> JudgeSettings:
    """For measuring until a deadline, after which whatever it does is left. scratch, native, lock: see
    `JudgeSettings`."""
    return JudgeSettings(
        target,
        scratch_dir=scratch,
        native_dir=native,
        device_lock=lock,
        arch=arch,
        timeouts=Timeouts(**SECONDS[target], is_over=deadline.cuts),
        frugal_from=NEVER,
        kept_share=KEPT_SHARE,
    )
