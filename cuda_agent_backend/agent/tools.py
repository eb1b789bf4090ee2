"""The tools of an episode: what a policy may do about one task.

``look`` tells of the task, its baselines and the room above the roofline floor; ``sketch`` and ``write`` make a
candidate and compile it; ``inspect`` tells what its machine code consists of; ``verify`` and ``profile`` try one;
``submit`` has one judged, or ends with nothing. Every answer is a JSON object with ``ok``; what went wrong comes back
as text the policy can act on, never as an exception.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from cuda_agent_backend.agent.memory import Neighbour
from cuda_agent_backend.agent.offer import offers
from cuda_agent_backend.agent.protocol import (
    BadArguments,
    Message,
    Schema,
    ToolCall,
    parse_arguments,
    tool_message,
)
from cuda_agent_backend.sketch.api import (
    Analysis,
    NotCovered,
    analyse,
    generate,
    schedules,
)
from cuda_agent_backend.sketch.cuda_layout import DeviceFacts
from cuda_agent_backend.sketch.device import CpuFacts
from cuda_agent_backend.sketch.schedule import Schedule
from cuda_agent_backend.sketch.space import space_of
from sandbox.candidate import Candidate, Language
from sandbox.disassembly import Inspection
from sandbox.plan import Plan, PlanError
from sandbox.roofline import Achieved
from sandbox.task import Task
from sandbox.verdict import Baselines, Failure, Outcome, Verdict

LOG_CHARACTERS = 2000
WORTH_CHECKING = 1.0
"""What is slower than the faster baseline, or than the best so far, is timed only: checking takes longer than that."""
SOUND = ("wins", "too_slow", "noisy")
"""Verdicts after which a candidate's speed is still something to compare with."""


class Bench(Protocol):
    """The part of the sandbox's judge that tools use."""

    def baselines(self, task: Task) -> Baselines | Failure: ...

    def compile(self, candidate: Candidate) -> Any: ...

    def inspect(self, candidate: Candidate) -> Inspection | Failure: ...

    def verify(self, task: Task, candidate: Candidate) -> Outcome: ...

    def profile(self, task: Task, candidate: Candidate, *, worth: float) -> Outcome: ...

    def judge(self, task: Task, candidate: Candidate) -> Verdict: ...


@dataclass
class Toolbox:
    """Tools bound to one task, and what the episode has brought so far."""

    task: Task
    bench: Bench
    facts: DeviceFacts | CpuFacts | None = None
    compile_jobs: int = 2
    neighbours: Sequence[Neighbour] = ()
    candidates: dict[str, Candidate] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    profiles: dict[str, float] = field(default_factory=dict)
    finished: str | None = None
    baselines: Baselines | None = None

    def __post_init__(self) -> None:
        self.analysis: Analysis | NotCovered = analyse(self.task)
        self._tools: dict[str, Callable[..., dict[str, Any]]] = {
            "look": self._look, "sketch": self._sketch, "write": self._write,
            "inspect": self._inspect, "verify": self._verify, "profile": self._profile, "submit": self._submit,
        }  # fmt: skip

    @property
    def schemas(self) -> list[Schema]:
        return TOOL_SCHEMAS

    def run(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Run ``calls`` in order; candidates named by neighbouring ``sketch`` calls compile side by side."""
        drafts = [c for c in calls if c.name in ("sketch", "write")]
        with ThreadPoolExecutor(max_workers=max(1, self.compile_jobs)) as pool:
            compiled = dict(
                zip((c.id for c in drafts), pool.map(self._guarded, drafts), strict=True)
            )
        return [
            tool_message(c, compiled[c.id] if c.id in compiled else self._guarded(c)) for c in calls
        ]

    def _guarded(self, call: ToolCall) -> dict[str, Any]:
        tool = self._tools.get(call.name)
        if tool is None:
            return {
                "ok": False,
                "error": f"no tool {call.name!r}; there are: {', '.join(self._tools)}",
            }
        schema = next(s for s in TOOL_SCHEMAS if s["function"]["name"] == call.name)
        try:
            started = self._worked()
            answer = tool(**parse_arguments(call, schema))
            return {**answer, "seconds": round(self._worked() - started, 3)}
        except BadArguments as error:
            return {"ok": False, "error": str(error)}

    def _worked(self) -> float:
        """A clock that stands still while other processes have their turn on the device."""
        return time.monotonic() - float(getattr(self.bench, "waited_s", 0.0))

    # --- tools ---

    def _look(self) -> dict[str, Any]:
        result = self.bench.baselines(self.task)
        if not isinstance(result, Baselines):
            return {"ok": False, "error": result.reason}
        self.baselines = result
        answer: dict[str, Any] = {
            "ok": True,
            "eager_us": result.eager_seconds * 1e6,
            "inductor_us": result.inductor_seconds * 1e6,
            "floor_us": result.floor_seconds * 1e6,
            "room": result.room,
        }
        if isinstance(self.analysis, NotCovered):
            known = offers(self.neighbours, (), lambda _: False)
            why_not = self.analysis.reason
            return {**answer, "sketch": None, "why_not": why_not, "neighbours": known}
        proposed = schedules(self.analysis, self.facts)
        return {
            **answer,
            "sketch": self.analysis.family,
            "schedules": [json.loads(s.to_json()) for s in proposed],
            "space": space_of(proposed).describe(),
            "neighbours": offers(self.neighbours, proposed, self._fits),
        }

    def _fits(self, schedule: Schedule) -> bool:
        """Whether a sketch of this task takes the schedule."""
        assert not isinstance(self.analysis, NotCovered)
        facts = self.facts if isinstance(self.facts, DeviceFacts) else None
        try:
            return isinstance(generate(self.analysis, schedule, facts), Candidate)
        except (ValueError, KeyError):
            return False

    def _sketch(self, schedule: list[Any]) -> dict[str, Any]:
        if isinstance(self.analysis, NotCovered):
            return {"ok": False, "error": f"no sketch covers this task: {self.analysis.reason}"}
        try:
            parsed = Schedule.from_json(json.dumps(schedule))
            made = generate(
                self.analysis, parsed, self.facts if isinstance(self.facts, DeviceFacts) else None
            )
        except (ValueError, KeyError) as error:
            return {"ok": False, "error": f"schedule does not fit: {error}"}
        if isinstance(made, NotCovered):
            return {"ok": False, "error": made.reason}
        return self._add(made)

    def _write(self, source: str, plan: str) -> dict[str, Any]:
        language: Language = "cuda" if self.task.target == "cuda" else "c++"
        try:
            parsed = Plan.from_json(plan)
        except PlanError as error:
            return {"ok": False, "error": f"plan: {error}"}
        if parsed.target != self.task.target:
            return {
                "ok": False,
                "error": f"the plan is for {parsed.target}, the task for {self.task.target}",
            }
        return self._add(Candidate(parsed.target, language, source, parsed, "policy"))

    def _add(self, candidate: Candidate) -> dict[str, Any]:
        outcome = self.bench.compile(candidate)
        if hasattr(outcome, "reason"):
            log = getattr(outcome, "log", "")
            return {"ok": False, "error": outcome.reason, "log": _cut(log)}
        name = candidate.digest[:12]
        self.candidates[name] = candidate
        return {"ok": True, "candidate": name, "facts": getattr(outcome, "facts", {})}

    def _candidate(self, name: str) -> Candidate:
        if name not in self.candidates:
            known = ", ".join(self.candidates) or "none yet"
            raise BadArguments(f"no candidate {name!r}; there are: {known}")
        return self.candidates[name]

    def _inspect(self, candidate: str) -> dict[str, Any]:
        found = self.bench.inspect(self._candidate(candidate))
        if not isinstance(found, Inspection):
            return {"ok": False, "error": found.reason}
        answer = {"ok": True, "kernels": found.kernels, "instructions": found.instructions}
        return answer | ({"why_no_instructions": found.why_not} if found.why_not else {})

    def _verify(self, candidate: str) -> dict[str, Any]:
        return _describe(self.bench.verify(self.task, self._candidate(candidate)))

    def _profile(self, candidate: str) -> dict[str, Any]:
        made = self._candidate(candidate)
        wrong = {name for name, verdict in self.verdicts.items() if verdict.status not in SOUND}
        others = [s for name, s in self.profiles.items() if name not in {candidate, *wrong}]
        found = self.bench.profile(self.task, made, worth=max([WORTH_CHECKING, *others]))
        answer = _describe(found)
        if "speedup" in answer:
            self.profiles[candidate] = answer["speedup"]["median"]
        return answer

    def _submit(self, candidate: str = "", reason: str = "") -> dict[str, Any]:
        if not candidate:
            self.finished = reason or "the policy gave up without a reason"
            return {"ok": True, "ended": self.finished}
        verdict = self.bench.judge(self.task, self._candidate(candidate))
        self.verdicts[candidate] = verdict
        if verdict.wins:
            self.finished = f"promoted: {verdict.reason}"
        return {
            "ok": verdict.wins,
            "status": verdict.status,
            "reason": verdict.reason,
            "reward": verdict.reward,
        }

    def best(self) -> tuple[Candidate, Verdict] | None:
        """The winning candidate with the largest proven speed-up."""
        won = [
            (v.speed.speedup.low if v.speed else 0.0, n) for n, v in self.verdicts.items() if v.wins
        ]
        if not won:
            return None
        name = max(won)[1]
        return self.candidates[name], self.verdicts[name]


def _describe(outcome: Outcome) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "ok": outcome.status in ("correct", "too_slow", "unchecked"),
        "status": outcome.status,
        "reason": outcome.reason,
    }
    speed = getattr(outcome, "speed", None)
    if speed is not None:
        answer["speedup"] = {
            "median": speed.speedup.median,
            "low": speed.speedup.low,
            "high": speed.speedup.high,
        }
        answer["baseline"] = speed.baseline
    achieved = getattr(outcome, "achieved", None)
    if achieved is not None:
        answer["achieved"] = _rates(achieved)
    if getattr(outcome, "log", ""):
        answer["log"] = _cut(outcome.log)  # type: ignore[union-attr]
    return answer


def _rates(achieved: Achieved) -> dict[str, float]:
    """In the units that engineers speak in, and as shares of what the machine was measured to do."""
    return {
        "us": round(achieved.seconds * 1e6, 2),
        "gb_per_s": round(achieved.bytes_per_s * 1e-9, 1),
        "share_of_memory_rate": round(achieved.of_memory, 3),
        "gflop_per_s": round(achieved.operations_per_s * 1e-9, 1),
        "share_of_float32_rate": round(achieved.of_arithmetic, 3),
    }


def _cut(text: str) -> str:
    """Long output with its middle left out and its size told."""
    if len(text) <= LOG_CHARACTERS:
        return text
    half = LOG_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} of {len(text)} characters left out ...]\n{text[-half:]}"


def _schema(
    name: str, description: str, required: Sequence[str] = (), **properties: tuple[str, str]
) -> Schema:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {
                    k: {
                        "type": t,
                        "description": d,
                        **({"items": {"type": "object"}} if t == "array" else {}),
                    }
                    for k, (t, d) in properties.items()
                },
                "required": list(required),
                "additionalProperties": False,
            },
        },
    }


_CANDIDATE = ("string", "name of a candidate, as sketch or write answered it")
TOOL_SCHEMAS: list[Schema] = [
    _schema("look", "Time the baselines; answer with the room over the roofline floor and the schedules proposed."),
    _schema("sketch", "Generate and compile a candidate from a sketch under a schedule.", ["schedule"],
            schedule=("array", "parameters, one object for each kernel")),
    _schema("write", "Compile a candidate from source and a launch plan.", ["source", "plan"],
            source=("string", "CUDA or C++ source"), plan=("string", "launch plan as JSON text")),
    _schema("inspect", "Tell of a candidate's machine code: registers, spills, shared memory, residency, instructions.",
            ["candidate"], candidate=_CANDIDATE),
    _schema("verify", "Check a candidate's results against the float64 oracle.", ["candidate"], candidate=_CANDIDATE),
    _schema("profile", "Time a candidate against the faster baseline, say its rates, and check it if none was faster.",
            ["candidate"], candidate=_CANDIDATE),
    _schema("submit", "Have a candidate judged for promotion; without one, end the episode with a reason.",
            candidate=_CANDIDATE, reason=("string", "why nothing is submitted")),
]  # fmt: skip
