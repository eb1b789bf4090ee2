"""Tool calls in what a local model wrote.

Where the model's tokenizer says how its messages are read (``response_template``), that is used; otherwise, and where
it fails, calls are JSON between tags (see `chat`). A call that is not JSON is handed on as it was written, so that the
tools answer what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from cuda_agent_backend.agent.policies.chat import CLOSE, OPEN
from cuda_agent_backend.agent.protocol import ToolCall

_CALL = re.compile(f"{OPEN}(.*?)(?:{CLOSE}|\\Z)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,64})"')
PREFIX_IDS = 64
"""Ids before a message that its reader is shown: templates may have begun it."""


def read_message(
    tokenizer: Any, ids: Sequence[int], prompt: Sequence[int], first: int
) -> tuple[str, tuple[ToolCall, ...]]:
    """Text and calls of a message that ended. ids: without the last, which ends it. first: the first call's number."""
    if getattr(tokenizer, "response_template", None):
        try:
            prefix = tokenizer.decode(list(prompt[-PREFIX_IDS:]))
            text = tokenizer.decode(list(ids))
            return _from_parsed(tokenizer.parse_response(text, prefix=prefix), first)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
    return read_tags(tokenizer.decode(list(ids)), first)


def read_tags(text: str, first: int) -> tuple[str, tuple[ToolCall, ...]]:
    """Text without its calls, and the calls between tags."""
    calls = tuple(_call(found, first + n) for n, found in enumerate(_CALL.findall(text)))
    return _CALL.sub("", text).strip(), calls


def _call(text: str, number: int) -> ToolCall:
    id = f"call_{number}"
    try:
        value = json.loads(text)
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            return ToolCall(id, value["name"], _arguments(value.get("arguments", {})))
    except (ValueError, RecursionError):
        pass
    named = _NAME.search(text)
    return ToolCall(id, named.group(1) if named else "", text.strip())


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _from_parsed(message: Any, first: int) -> tuple[str, tuple[ToolCall, ...]]:
    calls = []
    for n, one in enumerate(message.get("tool_calls") or ()):
        function = one.get("function", one)
        arguments = _arguments(function.get("arguments", {}))
        calls.append(ToolCall(f"call_{first + n}", str(function["name"]), arguments))
    return str(message.get("content") or ""), tuple(calls)
