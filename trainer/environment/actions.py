"""What a client sends as a policy's turn: an assistant message in the OpenAI format, which may be anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cuda_agent_backend.agent.protocol import ToolCall, Turn

FIELDS = ("role", "content", "tool_calls", "truncated")
SHOWN = 100
"""Characters of somebody's name in an error."""


@dataclass(frozen=True)
class BadAction:
    """What was sent is no turn, and why."""

    reason: str


def turn_of(action: Mapping[str, Any], first: int = 1) -> Turn | BadAction:
    """The turn that an assistant message stands for.

    action: content (text or null), tool_calls (each with a function that has a name, and arguments as an object or as
    JSON text), truncated (whether the policy was cut off). first: the number of the first call, for calls without id.
    """
    strange = [str(name)[:SHOWN] for name in action if name not in FIELDS]
    if strange:
        return BadAction(f"an action has {', '.join(FIELDS[1:])}, and no {strange[0]!r}")
    if action.get("role", "assistant") != "assistant":
        return BadAction("an action is a message of role 'assistant'")
    content, truncated = action.get("content") or "", action.get("truncated", False)
    if not isinstance(content, str):
        return BadAction("content is text")
    if not isinstance(truncated, bool):
        return BadAction("truncated is true or false")
    given = action.get("tool_calls") or []
    if not isinstance(given, list):
        return BadAction("tool_calls is a list")
    calls: list[ToolCall] = []
    for number, value in enumerate(given):
        call = _call(value, f"call_{first + number}")
        if isinstance(call, BadAction):
            return BadAction(f"tool_calls[{number}]: {call.reason}")
        calls.append(call)
    return Turn(content, tuple(calls), truncated)


def _call(value: Any, id: str) -> ToolCall | BadAction:
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return BadAction('it is not like {"function": {"name": "look", "arguments": "{}"}}')
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True)
    own = value.get("id")
    return ToolCall(own if isinstance(own, str) and own else id, function["name"], text)
