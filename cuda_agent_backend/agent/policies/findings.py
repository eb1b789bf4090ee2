"""What a conversation has brought so far: candidates, the schedules that they are from, and how fast they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent_backend.agent.protocol import Message
from cuda_agent_backend.json_values import object_in


@dataclass(frozen=True)
class Finding:
    """A candidate that was timed.

    speed: median over the faster baseline. schedule: [] where it is not from a sketch.
    """

    name: str
    speed: float
    schedule: list[Any] = field(default_factory=list)


def findings_of(messages: Sequence[Message]) -> list[Finding]:
    """All candidates that were timed, in the order in which they were first."""
    asked = {
        call["id"]: (call["function"]["name"], object_in(call["function"]["arguments"]))
        for message in messages
        for call in message.get("tool_calls", ())
    }
    schedules: dict[str, list[Any]] = {}
    speeds: dict[str, float] = {}
    for message in messages:
        if message["role"] != "tool" or message["tool_call_id"] not in asked:
            continue
        tool, arguments = asked[message["tool_call_id"]]
        answer = object_in(message["content"])
        if tool == "sketch" and isinstance(answer.get("candidate"), str):
            schedules.setdefault(answer["candidate"], arguments.get("schedule", []))
        if tool == "profile" and isinstance(answer.get("speedup"), dict):
            speeds[str(arguments.get("candidate"))] = float(answer["speedup"]["median"])
    return [Finding(name, speed, schedules.get(name, [])) for name, speed in speeds.items()]


def nearest_first(message: Message, schedule: list[Any]) -> Message:
    """An answer of ``look`` with the schedules proposed in order of nearness to ``schedule``, that itself first.

    Other messages, and all where there is no schedule, are as they were.
    """
    answer = object_in(message["content"]) if message["role"] == "tool" else {}
    proposed = answer.get("schedules")
    if not schedule or not isinstance(proposed, list):
        return message
    others = [one for one in proposed if one != schedule]
    nearest = sorted(others, key=lambda one: differences(one, schedule))  # stable: promise next
    return {**message, "content": json.dumps({**answer, "schedules": [schedule, *nearest]})}


def differences(one: list[Any], other: list[Any]) -> int:
    """In how many parameters two schedules differ; one with another number of kernels is far away."""
    if len(one) != len(other):
        return 1000
    count = 0
    for a, b in zip(one, other, strict=True):
        if not isinstance(a, dict) or not isinstance(b, dict):
            return 1000
        count += sum(a.get(name) != b.get(name) for name in {*a, *b})
    return count
