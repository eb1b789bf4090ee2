"""Which candidates of an episode a judge failed on for a reason that may pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandbox.failures import passing_words, why_passing


class WatchedJudge:
    """A judge whose failures that may pass are noted until the same step on the same candidate comes to something."""

    STEPS = ("baselines", "compile", "build_to_judge", "inspect", "verify", "profile", "judge")

    def __init__(self, judge: Any) -> None:
        self._judge = judge
        self._open: dict[tuple[str, str], str] = {}

    @property
    def passing(self) -> str:
        """The first failure that may pass and that nothing has come after, as one line, or ""."""
        return next(iter(list(self._open.values())), "")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._judge, name)
        if name not in WatchedJudge.STEPS:
            return found

        def step(*about: Any, **options: Any) -> Any:
            return self._noted((name, about[-1].digest), found(*about, **options))

        return step

    def _noted(self, place: tuple[str, str], outcome: Any) -> Any:
        why = why_passing(outcome)
        if why:
            self._open[place] = why
        else:
            self._open.pop(place, None)
        return outcome


def met_before(messages: Sequence[Any]) -> str:
    """Whether an earlier process, whose conversation an episode goes on with, met a failure that may pass."""
    answers = (m.get("content") for m in messages if m.get("role") == "tool")
    met = any(isinstance(text, str) and passing_words(text) for text in answers)
    return "an earlier process met a failure that may pass" if met else ""
