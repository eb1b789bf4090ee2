"""What the tools of an episode brought: taken from a toolbox as it grows, put back into a new one on resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cuda_agent_backend.agent.tools import Toolbox
from sandbox.accuracy import AccuracyReport, OutputReport
from sandbox.candidate import Candidate
from sandbox.plan import Plan
from sandbox.timing import Control, Interval, SpeedReport
from sandbox.verdict import Baselines, Verdict


@dataclass(frozen=True)
class Gains:
    """Candidates, verdicts, profiles (median speed-up over the faster baseline) by candidate name, and the rest.

    files: texts of the workspace by path, None where a file went away.
    """

    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    profiles: Mapping[str, float] = field(default_factory=dict)
    baselines: Baselines | None = None
    finished: str | None = None

    def plus(self, later: Gains) -> Gains:
        """Both; the later where they say different things."""
        return Gains(
            {**self.candidates, **later.candidates},
            {**self.verdicts, **later.verdicts},
            {**self.profiles, **later.profiles},
            later.baselines or self.baselines,
            self.finished if later.finished is None else later.finished,
        )

    def since(self, before: Gains) -> Gains:
        """What is new or different."""
        return Gains(
            {n: c for n, c in self.candidates.items() if n not in before.candidates},
            {n: v for n, v in self.verdicts.items() if before.verdicts.get(n) is not v},
            {n: p for n, p in self.profiles.items() if before.profiles.get(n) != p},
            None if self.baselines == before.baselines else self.baselines,
            None if self.finished == before.finished else self.finished,
        )


def gains_of(tools: Toolbox) -> Gains:
    """All that a toolbox holds now."""
    return Gains(
        dict(tools.candidates),
        dict(tools.verdicts),
        dict(tools.profiles),
        tools.baselines,
        tools.finished,
    )


def restore(tools: Toolbox, gains: Gains) -> None:
    """Put into a new toolbox what one before it brought."""
    tools.candidates.update(gains.candidates)
    tools.verdicts.update(gains.verdicts)
    tools.profiles.update(gains.profiles)
    tools.baselines, tools.finished = gains.baselines, gains.finished


def gains_to_json(gains: Gains) -> dict[str, Any]:
    """As JSON values; what is empty is left out."""
    whole = {
        "candidates": {n: _candidate_to_json(c) for n, c in gains.candidates.items()},
        "verdicts": {n: asdict(v) for n, v in gains.verdicts.items()},
        "profiles": dict(gains.profiles),
        "baselines": gains.baselines and asdict(gains.baselines),
        "finished": gains.finished,
    }
    return {name: value for name, value in whole.items() if value not in ({}, None)}


def gains_from_json(value: Mapping[str, Any]) -> Gains:
    """Raises `ValueError`, `KeyError`, `TypeError` or `AttributeError` where a field is not as it should be."""
    unknown = set(value) - {"candidates", "verdicts", "profiles", "baselines", "finished"}
    if unknown:
        raise ValueError(f"gains have unknown fields {', '.join(sorted(unknown))}")
    baselines = value.get("baselines")
    return Gains(
        {n: _candidate_from_json(c) for n, c in value.get("candidates", {}).items()},
        {n: _verdict_from_json(v) for n, v in value.get("verdicts", {}).items()},
        {n: float(p) for n, p in value.get("profiles", {}).items()},
        baselines and Baselines(**{n: float(s) for n, s in baselines.items()}),
        value.get("finished"),
    )


def _candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    return {
        "digest": candidate.digest,
        "target": candidate.target,
        "language": candidate.language,
        "origin": candidate.origin,
        "label": candidate.label,
        "source": candidate.source,
        "plan": candidate.plan.to_json(),
    }


def _candidate_from_json(value: Mapping[str, Any]) -> Candidate:
    fields = dict(value)
    digest, plan = fields.pop("digest"), Plan.from_json(fields.pop("plan"))
    candidate = Candidate(plan=plan, **fields)
    if candidate.digest != digest:
        raise ValueError(f"a candidate is not the one of its digest {digest[:12]}")
    return candidate


def _verdict_from_json(value: Mapping[str, Any]) -> Verdict:
    fields = dict(value)
    accuracy, speed = fields.pop("accuracy"), fields.pop("speed")
    return Verdict(
        **fields,
        accuracy=accuracy and AccuracyReport(tuple(map(_output, accuracy["outputs"]))),
        speed=speed and _speed(speed),
    )


def _output(value: Mapping[str, Any]) -> OutputReport:
    kept = ("number", "passes", "reason", "elements")
    fields: dict[str, Any] = {n: v if n in kept else float(v) for n, v in value.items()}
    return OutputReport(**fields)


def _speed(value: Mapping[str, Any]) -> SpeedReport:
    control = value["control"]
    return SpeedReport(
        {n: float(s) for n, s in value["seconds"].items()},
        {n: _interval(i) for n, i in value["over"].items()},
        value["baseline"],
        control and Control(**{**control, "interval": _interval(control["interval"])}),
        value["wins"],
    )


def _interval(value: Mapping[str, Any]) -> Interval:
    median, low, high = (float(value[name]) for name in ("median", "low", "high"))
    return Interval(median, low, high, value["pairs"])
