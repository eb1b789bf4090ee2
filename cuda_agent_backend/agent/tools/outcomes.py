"""What a verification or a profile found, as the answer of a tool."""

from __future__ import annotations

from cuda_agent_backend.agent.observation import (
    binding,
    cut,
    distribution_hint,
    errors_of,
    rates,
    speed_of,
)
from cuda_agent_backend.agent.tools.tool import Answer
from sandbox.plan.candidate import Candidate
from sandbox.verdict import Outcome, Wrong


def describe(outcome: Outcome, names: list[str]) -> Answer:
    """What came of a verification or a profile."""
    answer: Answer = {
        "ok": outcome.status in ("correct", "too_slow", "unchecked"),
        "status": outcome.status,
        "reason": outcome.reason,
    }
    speed = getattr(outcome, "speed", None)
    answer |= speed_of(speed) if speed is not None else {}
    achieved = getattr(outcome, "achieved", None)
    if achieved is not None:
        answer["achieved"] = rates(achieved)
        answer["binds"] = binding(achieved)
    accuracy = getattr(outcome, "accuracy", None)
    if accuracy is not None and accuracy.passes and accuracy.outputs:
        answer["error_ratio"] = round(min(accuracy.error_ratio, 1e9), 4)
    if isinstance(outcome, Wrong):
        answer |= {"outputs": errors_of(accuracy, names)} if accuracy is not None else {}
        hint = distribution_hint(outcome.where)
        answer |= {"inputs": hint} if hint else {}
    if getattr(outcome, "log", ""):
        answer["log"] = cut(outcome.log)  # type: ignore[union-attr]
    return answer


def output_names(candidate: Candidate) -> list[str]:
    """The names of the output buffers of a candidate's plan, in their order."""
    return [b.name for b in candidate.plan.buffers if b.kind == "output"]
