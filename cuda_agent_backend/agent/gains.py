"""What the tools of an episode brought: taken from a toolbox as it grows, put back into a new one on resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.agent.workspace.policy_files import put_back, texts
from sandbox.accuracy.misses import Misses, Place
from sandbox.accuracy.report import AccuracyReport, OutputReport
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Plan
from sandbox.timing.decision import Control, Interval, SpeedReport
from sandbox.verdict import Baselines, Verdict


@dataclass(frozen=True)
class Gains:
    """Candidates, verdicts, profiles (median speed-up over the faster baseline) by candidate name, and the rest.

    files: texts of the policy's files by path, None for one that went away. seen: digests of what it last saw.
    """

    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    profiles: Mapping[str, float] = field(default_factory=dict)
    baselines: Baselines | None = None
    finished: str | None = None
    files: Mapping[str, str | None] = field(default_factory=dict)
    seen: Mapping[str, str] = field(default_factory=dict)
    built: Mapping[str, Any] = field(default_factory=dict)
    """By candidate what compiling told of its kernels."""

    def plus(self, later: Gains) -> Gains:
        """Both; the later where they say different things."""
        return Gains(
            {**self.candidates, **later.candidates},
            {**self.verdicts, **later.verdicts},
            {**self.profiles, **later.profiles},
            later.baselines or self.baselines,
            self.finished if later.finished is None else later.finished,
            {**self.files, **later.files},
            {**self.seen, **later.seen},
            {**self.built, **later.built},
        )

    def since(self, before: Gains) -> Gains:
        """What is new or different."""
        return Gains(
            {n: c for n, c in self.candidates.items() if n not in before.candidates},
            {n: v for n, v in self.verdicts.items() if before.verdicts.get(n) is not v},
            {n: p for n, p in self.profiles.items() if before.profiles.get(n) != p},
            None if self.baselines == before.baselines else self.baselines,
            None if self.finished == before.finished else self.finished,
            {
                path: self.files.get(path)
                for path in {**before.files, **self.files}
                if self.files.get(path) != before.files.get(path)
            },
            {path: d for path, d in self.seen.items() if before.seen.get(path) != d},
            {n: facts for n, facts in self.built.items() if before.built.get(n) != facts},
        )


def gains_of(tools: Toolbox) -> Gains:
    """All that a toolbox holds now."""
    workspace = tools.workspace
    return Gains(
        dict(tools.candidates),
        dict(tools.verdicts),
        dict(tools.profiles),
        tools.baselines,
        tools.finished,
        {} if workspace is None else texts(workspace),
        {} if workspace is None else dict(workspace.seen),
        dict(tools.built),
    )


def restore(tools: Toolbox, gains: Gains) -> None:
    """Put into a new toolbox what one before it brought."""
    tools.candidates.update(gains.candidates)
    tools.verdicts.update(gains.verdicts)
    tools.profiles.update(gains.profiles)
    tools.built.update(gains.built)
    tools.finished = gains.finished
    if gains.baselines is not None:
        tools.note_baselines(gains.baselines)
    workspace = tools.workspace
    if workspace is not None:
        put_back(workspace, gains.files, gains.seen)


def gains_to_json(gains: Gains) -> dict[str, Any]:
    """As JSON values; what is empty is left out."""
    whole = {
        "candidates": {n: _candidate_to_json(c) for n, c in gains.candidates.items()},
        "verdicts": {n: asdict(v) for n, v in gains.verdicts.items()},
        "profiles": dict(gains.profiles),
        "baselines": gains.baselines and asdict(gains.baselines),
        "finished": gains.finished,
        "files": dict(gains.files),
        "seen": dict(gains.seen),
        "built": dict(gains.built),
    }
    return {name: value for name, value in whole.items() if value not in ({}, None)}


def gains_from_json(value: Mapping[str, Any]) -> Gains:
    """Raises `ValueError`, `KeyError`, `TypeError` or `AttributeError` where a field is not as it should be."""
    unknown = set(value) - {f.name for f in fields(Gains)}
    if unknown:
        raise ValueError(f"gains have unknown fields {', '.join(sorted(unknown))}")
    baselines = value.get("baselines")
    return Gains(
        {n: _candidate_from_json(c) for n, c in value.get("candidates", {}).items()},
        {n: _verdict_from_json(v) for n, v in value.get("verdicts", {}).items()},
        {n: float(p) for n, p in value.get("profiles", {}).items()},
        baselines and Baselines(**{n: float(s) for n, s in baselines.items()}),
        value.get("finished"),
        dict(value.get("files", {})),
        dict(value.get("seen", {})),
        dict(value.get("built", {})),
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
    rest = dict(value)
    digest, plan = rest.pop("digest"), Plan.from_json(rest.pop("plan"))
    candidate = Candidate(plan=plan, **rest)
    if candidate.digest != digest:
        raise ValueError(f"a candidate is not the one of its digest {digest[:12]}")
    return candidate


def _verdict_from_json(value: Mapping[str, Any]) -> Verdict:
    rest = dict(value)
    accuracy, speed = rest.pop("accuracy"), rest.pop("speed")
    return Verdict(
        **rest,
        accuracy=accuracy and AccuracyReport(tuple(map(_output, accuracy["outputs"]))),
        speed=speed and _speed(speed),
    )


def _output(value: Mapping[str, Any]) -> OutputReport:
    kept = ("number", "passes", "reason", "elements")
    rest = dict(value)
    wrong = rest.pop("misses")
    numbers: dict[str, Any] = {n: v if n in kept else float(v) for n, v in rest.items()}
    return OutputReport(**numbers, misses=wrong and _misses(wrong))


def _misses(value: Mapping[str, Any]) -> Misses:
    worst = value["worst"]
    first = tuple(map(_place, value["first"]))
    return Misses(value["count"], value["elements"], first, worst and _place(worst))


def _place(value: Mapping[str, Any]) -> Place:
    return Place(tuple(value["index"]), value["found"], value["wanted"])


def _speed(value: Mapping[str, Any]) -> SpeedReport:
    control = value["control"]
    return SpeedReport(
        {n: float(s) for n, s in value["seconds"].items()},
        {n: _interval(i) for n, i in value["over"].items()},
        value["baseline"],
        control and Control(**{**control, "interval": _interval(control["interval"])}),
        value["wins"],
        _interval(value["wall"]) if value.get("wall") else None,
    )


def _interval(value: Mapping[str, Any]) -> Interval:
    median, low, high = (float(value[name]) for name in ("median", "low", "high"))
    return Interval(median, low, high, value["pairs"])
