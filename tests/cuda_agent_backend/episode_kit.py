"""Episodes without a machine: tools whose answers hang on the candidate alone, and policies that say set things."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cuda_agent_backend.agent.protocol import (
    Message,
    Schema,
    Stopped,
    Tokens,
    ToolCall,
    Turn,
    Usage,
    tool_message,
)
from cuda_agent_backend.agent.trajectories.events import Header
from sandbox.accuracy.misses import Misses, Place
from sandbox.accuracy.report import AccuracyReport, OutputReport
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Plan
from sandbox.plan.steps import Buffer, Launch
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Task
from sandbox.timing.decision import control, report
from sandbox.verdict import Baselines, Verdict

SPEC = TensorSpec("float32", (64, 64), (64, 1))
TASK = Task(
    "cpu", (SPEC,), (Node("aten.relu.default", {"self": InputRef(0)}),), (NodeRef(0),), (SPEC,)
)
PLAN = Plan("cpu", (Buffer("x", "input", SPEC), Buffer("y", "output", SPEC)), (Launch("kernel"),))
BASELINE_S = 2e-5
WINS = 1.05


def candidate(source: str) -> Candidate:
    return Candidate("cpu", "c++", source, PLAN, "policy", "by hand")


def speed_of(made: Candidate) -> float:
    """A speed-up between 0.5 and 2, the same whenever it is asked for."""
    return 0.5 + zlib.crc32(made.source.encode("utf-8", "replace")) % 1000 / 666


def verdict(made: Candidate) -> Verdict:
    """With reports and raw samples as the judge's has them, and a number that is not finite."""
    speed = speed_of(made)
    samples = {
        "eager": [3e-5] * 12,
        "inductor": [BASELINE_S] * 12,
        "candidate": [BASELINE_S / speed] * 12,
    }
    found = report(samples, aa=control([1.0] * 12, [1.01] * 12))
    place = Place((3, 4), "nan", "0.5")
    output = OutputReport(0, True, "", 4096, 1e-7, max_allowed=float("inf"))
    wrong = replace(output, number=1, misses=Misses(7, 4096, (place, place), place))
    accuracy = AccuracyReport((output, wrong))
    status = "wins" if found.wins else "too_slow"
    evidence = {"samples": samples, "worst": float("nan")}
    return Verdict(status, f"{speed:.2f}x", 3.0 if found.wins else 1.0, accuracy, found, evidence)


@dataclass
class Tools:
    """Stands in for a `Toolbox`: draft makes a candidate, shell counts how often it was run, fail raises."""

    task: Task = TASK
    bench: Any = None
    candidates: dict[str, Candidate] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    profiles: dict[str, float] = field(default_factory=dict)
    built: dict[str, Any] = field(default_factory=dict)
    finished: str | None = None
    baselines: Baselines | None = None
    delay: Callable[[], None] = lambda: None
    done: list[str] = field(default_factory=list)

    schemas: Sequence[Schema] = ()
    workspace: Any = None
    shell: Any = None

    def note_baselines(self, found: Baselines) -> None:
        self.baselines = found

    def run(self, calls: Sequence[ToolCall]) -> list[Message]:
        return [tool_message(call, self._one(call)) for call in calls]

    def _one(self, call: ToolCall) -> dict[str, Any]:
        self.delay()
        self.done.append(call.name)
        try:
            arguments = json.loads(call.arguments)
        except ValueError as error:
            return {"ok": False, "error": f"not JSON: {error}: {call.arguments}"}
        match call.name:
            case "look":
                self.baselines = Baselines(3e-5, BASELINE_S, 1e-6, 1e-5)
                return {"ok": True, "room": 1.8}
            case "draft":
                made = candidate(arguments["source"])
                self.candidates[made.digest[:12]] = made
                return {"ok": True, "candidate": made.digest[:12]}
            case "profile":
                name = arguments["candidate"]
                self.profiles[name] = speed_of(self.candidates[name])
                return {"ok": True, "speedup": {"median": self.profiles[name]}, "seconds": 0.1}
            case "submit" if "candidate" in arguments:
                return self._submit(arguments["candidate"])
            case "submit":
                self.finished = arguments["reason"]
                return {"ok": True, "ended": self.finished}
            case "shell":
                return {"ok": True, "output": arguments["command"]}
            case "fail":
                raise RuntimeError("a fault of the tool")
        return {"ok": False, "error": f"no tool {call.name!r}"}

    def _submit(self, name: str) -> dict[str, Any]:
        found = verdict(self.candidates[name])
        self.verdicts[name] = found
        if found.wins:
            self.finished = f"promoted: {found.reason}"
        return {"ok": found.wins, "status": found.status, "reason": found.reason, "reward": 3.0}

    def best(self) -> tuple[Candidate, Verdict] | None:
        won = [
            (v.speed.speedup.low if v.speed else 0.0, n) for n, v in self.verdicts.items() if v.wins
        ]
        return (self.candidates[max(won)[1]], self.verdicts[max(won)[1]]) if won else None

    def promising(self) -> dict[str, float]:
        return self.profiles


Step = Turn | Stopped | Callable[[Sequence[Message]], Turn | Stopped]


@dataclass
class Script:
    """A policy that is a pure function of the messages: so many turns are done, so this one is next."""

    steps: Sequence[Step]
    name: str = "script"
    delay: Callable[[], None] = lambda: None

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        self.delay()
        step = self.steps[sum(message["role"] == "assistant" for message in messages)]
        return step(messages) if callable(step) else step


def calls(content: str, *made: ToolCall, **more: Any) -> Turn:
    return Turn(content, made, **more)


def source(number: int) -> str:
    """A kernel of a line or two."""
    return f'// kernel {number}\nextern "C" void kernel(void* const* p) {{}}\n'


def name_of(number: int) -> str:
    return candidate(source(number)).digest[:12]


def draft(number: int, id: str = "1") -> ToolCall:
    return ToolCall.of(id, "draft", source=source(number))


def profile(number: int, id: str = "1") -> ToolCall:
    return ToolCall.of(id, "profile", candidate=name_of(number))


def submit(number: int, id: str = "1") -> ToolCall:
    return ToolCall.of(id, "submit", candidate=name_of(number))


def winners(count: int) -> list[int]:
    """Numbers of kernels that win."""
    return [n for n in range(1000) if speed_of(candidate(source(n))) > 1.3][:count]


def losers(count: int) -> list[int]:
    """Numbers of kernels that are slower than the baseline."""
    return [n for n in range(1000) if speed_of(candidate(source(n))) < 0.9][:count]


TOKENS = Tokens((1, 2, 3), (7, 8), (-0.25, float("-inf")), follows=False)


def winning() -> list[Step]:
    """An episode in which two lose and a third wins, with all that a turn may have."""
    (slow, slower), (fast,) = losers(2), winners(1)
    return [
        calls("Look.", ToolCall.of("1", "look"), tokens=TOKENS, usage=Usage(3, 2, 0.001)),
        calls(
            "Two.", draft(slow, "1"), draft(slower, "2"), profile(slow, "3"), profile(slower, "4")
        ),
        calls("cut \ud800 <script>alert(1)</script>", draft(99), truncated=True),
        calls("Wrong.", ToolCall.of("1", "dance")),
        calls("Submit.", submit(slow)),
        calls("A shell.", ToolCall.of("1", "shell", command="ls")),
        calls("Better.", draft(fast)),
        calls("Time it.", profile(fast)),
        calls("Submit it.", submit(fast)),
    ]


def header(**changes: Any) -> Header:
    fields: dict[str, Any] = {
        "task": TASK.to_json(),
        "task_digest": TASK.digest,
        "target": "cpu",
        "policy": "script",
        "spec": "script",
        "tools": "0" * 64,
        "machine": {"cpu": "a", "load": [1.0]},
        "toolchain": "g++",
        "verifier": "7",
        "flags": {"threads": 2},
        "started": time.time(),
        "budget_s": 100.0,
        "turns": 200,
    }
    return Header(**{**fields, **changes})


def said(messages: Sequence[Message]) -> list[Message]:
    """The conversation without what is never the same twice."""
    found = []
    for message in messages:
        if message["role"] == "tool":
            answer = json.loads(message["content"])
            answer.pop("seconds", None)
            message = {**message, "content": answer}
        found.append(message)
    return found
