"""What an endpoint is sent: the conversation in a form that every server takes, and that fits.

Servers decode the arguments of earlier calls, so malformed ones, which the conversation keeps as they were written, are
sent as an object that holds the text. Where the conversation comes near the limit of the context, old observations are
shortened, oldest first, `STEP` messages at a time, so that the beginning stays the same over several turns and servers
can go on using what they cached of it. Nothing is left out: every call keeps its answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from cuda_agent_backend.agent.protocol import Message

STEP = 8
SHORT = 400
"""Characters that are left of a shortened observation."""
KEPT = 4
"""Messages at the end that stay as they are."""


def prepared(messages: Sequence[Message], limit: int) -> list[Message]:
    """The conversation with malformed calls mended and over-long messages cut in the middle."""
    return [_prepared(message, limit) for message in messages]


def compacted(messages: Sequence[Message], characters: int) -> list[Message]:
    """``messages`` with as many old observations shortened as it takes to have at most so many characters."""
    made = list(messages)
    for end in range(STEP, len(made) - KEPT + STEP, STEP):
        if size(made) <= characters:
            break
        last = min(end, len(made) - KEPT)
        made[:last] = [_shortened(message) for message in made[:last]]
    return made


def size(messages: Sequence[Message]) -> int:
    """Characters of a conversation, near enough."""
    return sum(len(json.dumps(message, ensure_ascii=False)) for message in messages)


def ids_of(messages: Sequence[Message]) -> set[str]:
    """The ids of all calls in a conversation."""
    return {str(call["id"]) for m in messages for call in m.get("tool_calls", ())}


def cut_middle(text: str, limit: int) -> str:
    """At most about so many characters of a text: its beginning and its end, with its size told."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left = len(text) - 2 * half
    return f"{text[:half]}\n[... {left} of {len(text)} characters left out ...]\n{text[-half:]}"


def _shortened(message: Message) -> Message:
    if message["role"] != "tool" or len(message["content"]) <= 2 * SHORT:
        return message
    return {**message, "content": cut_middle(message["content"], SHORT)}


def _prepared(message: Message, limit: int) -> Message:
    content = _encodable(str(message.get("content") or ""))
    made = {**message, "content": cut_middle(content, limit)}
    if message.get("tool_calls"):
        made["tool_calls"] = [_sound(call, limit) for call in message["tool_calls"]]
    return made


def _sound(call: dict[str, Any], limit: int) -> dict[str, Any]:
    function = call["function"]
    name = re.sub(r"[^A-Za-z0-9_-]", "_", function["name"])[:64] or "unnamed"
    text = function["arguments"] or "{}"
    if len(text) > limit or not _is_object(text):
        text = json.dumps({"malformed": cut_middle(_encodable(text), limit)})
    return {**call, "function": {"name": name, "arguments": _encodable(text)}}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
