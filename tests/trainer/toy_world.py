"""A world of a few made-up tasks, for tests of the loop alone: tools that answer as the real ones, from a formula."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from cuda_agent_backend.agent.protocol import Message, Schema, ToolCall, tool_message
from cuda_agent_backend.agent.tools.toolbox import tool_schemas
from trainer.rollout.world import WorldFailed

TASK = (
    '{"inputs":[{"dtype":"float32","shape":[64,%d],"stride":[%d,1]}],"nodes":[{"args":{"self":{"i":0}},'
    '"op":"aten.relu.default"}],"output_specs":[{"dtype":"float32","shape":[64,%d],"stride":[%d,1]}],'
    '"outputs":[{"n":0}],"target":"cuda"}'
)
TEAMS = (32, 64, 128, 256)
TOML = """
[model]
hidden = 16
layers = 1
heads = 1
key_heads = 1
head = 16
inner = 32
window = 1024
[world]
kind = "factory"
factory = "toy_world:make"
"""
"""Of a configuration: the smallest model, and this world."""


@dataclass(frozen=True)
class ToyVerdict:
    """As much of a verdict as an episode asks for."""

    status: str
    reward: float
    speed: Any = None
    reason: str = ""

    @property
    def wins(self) -> bool:
        return self.status == "wins"


@dataclass(frozen=True)
class ToyCandidate:
    digest: str


@dataclass
class ToyTools:
    """Schedules name a team; the best one hangs on the task's columns, and wins."""

    columns: int = 256
    judgements: int = 10
    finished: str | None = None
    candidates: dict[str, Any] = field(default_factory=dict)
    verdicts: dict[str, Any] = field(default_factory=dict)
    profiles: dict[str, float] = field(default_factory=dict)
    built: dict[str, Any] = field(default_factory=dict)
    baselines: Any = None
    workspace: Any = None
    shell: Any = None
    bench: Any = None
    task: Any = None
    seconds_left: Any = None
    timed: bool = False

    schemas: Sequence[Schema] = tuple(tool_schemas(False))

    @property
    def best_team(self) -> int:
        return TEAMS[(self.columns.bit_length() - 1) % len(TEAMS)]

    def first(self) -> list[Message]:
        text = TASK % ((self.columns,) * 4)
        return [{"role": "user", "content": f"Budget: {self.judgements} judgements.\n{text}"}]

    def speed(self, team: int) -> float:
        return 1.5 if team == self.best_team else 0.8

    def run(self, calls: Sequence[ToolCall]) -> list[Message]:
        return [tool_message(call, self._one(call)) for call in calls]

    def _one(self, call: ToolCall) -> Mapping[str, Any]:
        arguments = json.loads(call.arguments)
        match call.name:
            case "look":
                schedules = [[{"sketch": "row", "team": t, "vector": 4}] for t in TEAMS]
                space = [[{"sketch": ["row"], "team": [*TEAMS, 512], "vector": [4]}]]
                times = {"eager_us": 30.0, "inductor_us": 20.0, "overhead_us": 3.0, "floor_us": 8.0}
                more = {"room": 2.5, "sketch": "row", "schedules": schedules, "space": space}
                return {"ok": True, **times, **more, "neighbours": []}
            case "sketch":
                return self._sketch(arguments["schedule"])
            case "profile":
                speed = self.speed(self.candidates[arguments["candidate"]])
                self.profiles[arguments["candidate"]] = speed
                found = {"median": speed, "low": 0.99 * speed, "high": 1.01 * speed}
                return {"ok": True, "status": "correct", "speedup": found, "seconds": 0.1}
            case "submit" if arguments.get("candidate"):
                return self._submit(arguments["candidate"])
            case "submit":
                self.finished = arguments["reason"]
                return {"ok": True, "ended": self.finished}
        return {"ok": True, "status": "correct"}

    def _sketch(self, schedule: list[dict[str, Any]]) -> Mapping[str, Any]:
        text = json.dumps(schedule, sort_keys=True)
        if schedule[0]["team"] not in TEAMS:
            return {"ok": False, "error": "it does not fit"}
        name = f"{zlib.crc32(text.encode()):012x}"
        self.candidates[name] = schedule[0]["team"]
        return {"ok": True, "candidate": name, "facts": {"k": {"registers": 32, "occupancy": 0.5}}}

    def _submit(self, name: str) -> Mapping[str, Any]:
        won = self.speed(self.candidates[name]) > 1.05
        ratio = self.speed(self.candidates[name])
        timed = SimpleNamespace(speedup=SimpleNamespace(median=ratio, low=ratio))
        self.verdicts[name] = ToyVerdict(
            "wins" if won else "too_slow", 3.0 if won else 1.0, timed if self.timed else None
        )
        self.finished = "promoted" if won else None
        return {
            "ok": won,
            "status": self.verdicts[name].status,
            "reward": self.verdicts[name].reward,
        }

    def best(self) -> Any:
        won = [name for name, v in self.verdicts.items() if v.wins]
        return (ToyCandidate(won[0]), self.verdicts[won[0]]) if won else None

    def promising(self) -> dict[str, float]:
        return self.profiles


@dataclass
class ToyWorld:
    """Tasks by their columns. dies: whose environment cannot be made. validation_tasks: none, as in most worlds."""

    tasks: Sequence[str] = ("64", "128", "256", "512")
    side_by_side: int = 16
    dies: frozenset[str] = frozenset()
    closed: bool = False
    validation_tasks: Sequence[str] = ()

    @property
    def test_tasks(self) -> Sequence[str]:
        return self.tasks

    def tools(self, task: str, seed: int) -> ToyTools:
        if task in self.dies:
            raise WorldFailed(f"the environment of {task} died")
        return ToyTools(int(task))

    def close(self) -> None:
        self.closed = True


def make(settings: Any) -> ToyWorld:
    """For configurations: ``factory = "toy_world:make"``."""
    return ToyWorld(side_by_side=settings.side_by_side)
