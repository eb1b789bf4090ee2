"""Reading what an endpoint answered: a chat completion as servers really write it, into a `Turn`.

Nothing here trusts the server: what is not as the format says is mended where it is plain what was meant, handed to the
tools as it is where they can say what is wrong with it, and `Unreadable` otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cuda_agent_backend.agent.policies.calls import read_tags
from cuda_agent_backend.agent.policies.chat import OPEN
from cuda_agent_backend.agent.policies.spec import Limits
from cuda_agent_backend.agent.protocol import ToolCall, Turn, Usage

WHOLE = ("stop", "tool_calls", "function_call", "eos", "end_turn", "tool_use", "")
"""Reasons to finish after which a message is whole. All others ("length", "content_filter", those that nobody knows)
leave it unsure whether its calls are."""
MAX_CALLS = 64
"""Calls of one message; what is beyond them is not run."""
CHARACTERS_PER_TOKEN = 3
"""Few, so that lengths guessed from it are on the safe side."""
MOST_TOKENS = 10**12
"""More is no count of a message's tokens but a server's mistake, and need not fit a float."""


@dataclass(frozen=True)
class Unreadable:
    """An answer that is no chat completion."""

    reason: str


def read_answer(
    value: Any, limits: Limits, taken: Collection[str] = (), sent: int = 0
) -> Turn | Unreadable:
    """The turn in a decoded answer.

    taken: ids of calls that the conversation has already. sent: its characters, for servers that do not count tokens.
    """
    try:
        return _read(value, limits, taken, sent)
    except RecursionError:
        return Unreadable("the answer is nested too deeply")


def _read(value: Any, limits: Limits, taken: Collection[str], sent: int) -> Turn | Unreadable:
    if not isinstance(value, dict):
        return Unreadable(f"the answer is a JSON {type(value).__name__}, not an object")
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return Unreadable(f"the answer has no choices: {error_text(value)}")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        return Unreadable("the answer's first choice has no message")
    finish = choices[0].get("finish_reason")
    whole = finish is None or finish in WHOLE
    calls = _calls(message, set(taken))
    content = _encodable(_text(message.get("content")))
    if not calls:
        content, calls = _tagged(content, set(taken))
    if not content and not calls:
        thoughts = message.get("reasoning_content") or message.get("reasoning")
        content = _encodable(_text(thoughts))
    content, cut = _cut(content, limits.message_characters)
    written = content + "".join(call.arguments for call in calls)
    if cut or not whole or len(calls) > MAX_CALLS or len(written) > limits.message_characters:
        calls, whole = (), False
    return Turn(
        content, calls, not whole, usage=usage_of(value.get("usage"), limits, written, sent)
    )


def error_text(value: Any) -> str:
    """The message of an error object, or the beginning of what there is instead."""
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    try:
        text = error if isinstance(error, str) else json.dumps(error, default=str)
    except RecursionError:
        text = "an error that is nested too deeply"
    return " ".join(text.split())[:300]


def usage_of(value: Any, limits: Limits, written: str, read: int = 0) -> Usage:
    """Tokens and their cost; what the server does not say is guessed from what was written and read (characters)."""
    given: Mapping[str, Any] = value if isinstance(value, dict) else {}
    prompt = _count(given.get("prompt_tokens"), read // CHARACTERS_PER_TOKEN)
    completion = _count(given.get("completion_tokens"), len(written) // CHARACTERS_PER_TOKEN)
    details = given.get("prompt_tokens_details")
    held = _count(details.get("cached_tokens"), 0) if isinstance(details, dict) else 0
    held = min(held, prompt)
    cached = limits.price_in if limits.price_cached is None else limits.price_cached
    cost = (prompt - held) * limits.price_in + held * cached + completion * limits.price_out
    return Usage(prompt, completion, cost * 1e-6)


def _count(value: Any, otherwise: int) -> int:
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else otherwise


def _text(content: Any) -> str:
    """Text, or the texts of a list of parts, joined."""
    if isinstance(content, list):
        return "".join(_text(p.get("text") if isinstance(p, dict) else p) for p in content)
    return content if isinstance(content, str) else ""


def _calls(message: Mapping[str, Any], taken: set[str]) -> tuple[ToolCall, ...]:
    given = message.get("tool_calls")
    calls = list(given) if isinstance(given, list) else []
    if not calls and isinstance(message.get("function_call"), dict):
        calls = [{"function": message["function_call"]}]
    return tuple(_call(one, taken) for one in calls)


def _tagged(content: str, taken: set[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """Text, and the calls in it that the server left as the model wrote them: it reads none, or one was malformed."""
    text, found = read_tags(content, 0) if OPEN in content else (content, ())
    calls = []
    for call in found:
        calls.append(replace(call, id=new_id(taken)))
        taken.add(calls[-1].id)
    return text, tuple(calls)


def _call(value: Any, taken: set[str]) -> ToolCall:
    """One call; its id is a new one where it has none, or one that is in use."""
    one: dict[str, Any] = value if isinstance(value, dict) else {}
    inner = one.get("function")
    function: dict[str, Any] = inner if isinstance(inner, dict) else one
    name = function.get("name")
    arguments = function.get("arguments", "" if "name" in function else json.dumps(value))
    if arguments is None:
        arguments = ""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    id = one.get("id")
    if not isinstance(id, str) or not id or id in taken:
        id = new_id(taken)
    taken.add(id)
    return ToolCall(
        _encodable(id), _encodable(name) if isinstance(name, str) else "", _encodable(arguments)
    )


def new_id(taken: Collection[str]) -> str:
    """An id of a call that none has yet."""
    number = len(taken) + 1
    while f"call_{number}" in taken:
        number += 1
    return f"call_{number}"


def _encodable(text: str) -> str:
    """Halves of surrogate pairs cannot be sent back; they become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _cut(text: str, limit: int) -> tuple[str, bool]:
    if len(text) <= limit:
        return text, False
    return f"{text[:limit]}\n[cut off: {len(text)} characters]", True
