"""The replay policy: the assistant's messages of a recorded episode, or of a file written by hand, once more.

The file is a trajectory, or messages as JSON lines or as one JSON list. Only what the assistant said is played. A turn
that was cut off is cut off again (a trajectory says so): its calls were not run, and are not run now.
Candidates are named by their content, so names hold as long as the code that makes candidates does the same; where it
does not, a name that a recorded answer gave stands for the one that the same call is given now.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.agent.protocol import Message, Schema, Stopped, ToolCall, Turn


def make(spec: PolicySpec) -> ReplayPolicy:
    """Raises `ImportError` where there is no file to play."""
    messages = read_messages(Path(spec.model))
    if isinstance(messages, str):
        raise ImportError(messages)
    return ReplayPolicy(messages, spec.label)


def read_messages(path: Path) -> list[Message] | str:
    """The messages of a file; or why there are none. A line cut short, as by a kill, is left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{path} cannot be played: {error.strerror}"
    except ValueError as error:  # a name that no file can have
        return f"{str(path)!r} cannot be played: {error}"
    found = [message for value in _values(text) for message in _messages(value)]
    if not any(message["role"] == "assistant" for message in found):
        return f"{path} cannot be played: it has no assistant's message"
    return found


class ReplayPolicy:
    """Plays the assistant's messages among ``messages``, one for each turn.

    Where it is follows from the conversation, so it may serve many episodes at once, and ones that are resumed.
    """

    def __init__(self, messages: Sequence[Message], name: str = "replay") -> None:
        self.name = name
        self._turns = [turn_of(m) for m in messages if m["role"] == "assistant"]
        self._named = candidates_of(messages)

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """The next recorded message; calls of candidates by the names that they have now."""
        played = sum(message["role"] == "assistant" for message in messages)
        if played >= len(self._turns):
            return Stopped("context", "the recording is at its end")
        turn = self._turns[played]
        now = candidates_of(messages)
        names = {old: now[id] for id, old in self._named.items() if id in now}
        calls = tuple(_renamed(call, names) for call in turn.calls)
        return Turn(turn.content, calls, turn.truncated)


def turn_of(message: Mapping[str, Any]) -> Turn:
    """An assistant's message as a turn, as far as it is one."""
    calls = []
    given = message.get("tool_calls")
    for number, call in enumerate(given if isinstance(given, list) else []):
        one: Any = call if isinstance(call, dict) else {}
        function: Any = one.get("function") if isinstance(one.get("function"), dict) else one
        arguments = function.get("arguments", "")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        id = str(one.get("id") or f"replay_{number + 1}")
        calls.append(ToolCall(id, str(function.get("name", "")), text))
    cut_off = message.get("truncated") is True
    return Turn(str(message.get("content") or ""), tuple(calls), cut_off)


def candidates_of(messages: Sequence[Message]) -> dict[str, str]:
    """The name of the candidate that each call was answered with, by the call's id."""
    found = {}
    for message in messages:
        if message["role"] != "tool":
            continue
        try:
            answer = json.loads(message.get("content", ""))
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(answer, dict) and isinstance(answer.get("candidate"), str):
            found[str(message.get("tool_call_id"))] = answer["candidate"]
    return found


def _renamed(call: ToolCall, names: Mapping[str, str]) -> ToolCall:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call
    old = arguments.get("candidate") if isinstance(arguments, dict) else None
    if not isinstance(old, str) or names.get(old, old) == old:
        return call
    renamed = {**arguments, "candidate": names[old]}
    return ToolCall(call.id, call.name, json.dumps(renamed, sort_keys=True))


def _values(text: str) -> Iterator[Any]:
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, list):
        yield from whole
        return
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _messages(value: Any) -> list[Message]:
    """The messages in one line: itself, or those of an event of a trajectory."""
    if not isinstance(value, dict):
        return []
    if _has_role(value):
        return [value]
    if value.get("kind") == "acted":
        return [{**value, "role": "assistant", "tool_calls": value.get("calls")}]
    several = value.get("messages")
    return [m for m in several if _has_role(m)] if isinstance(several, list) else []


def _has_role(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)
