"""Trajectories as JSON lines: strict JSON, ASCII, one object a line, without pickle.

Numbers that are not finite, as a log-probability may be, are written as the strings "inf", "-inf" and "nan".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from cuda_agent_backend.agent.gains import gains_from_json, gains_to_json
from cuda_agent_backend.agent.protocol import Message, Tokens, ToolCall, Turn, Usage
from cuda_agent_backend.agent.trajectories.events import (
    STOPS,
    VERSION,
    Acted,
    Answered,
    Ended,
    Event,
    Header,
    Resumed,
    Said,
)

T = TypeVar("T")
YEAR_10000 = 253402300800
"""In Unix time: what is later has no date."""
ROLES = ("system", "user", "assistant", "tool")


class LineError(ValueError):
    """A line is not what the format says."""


class LaterVersion(LineError):
    """The file is of a version that this code does not know."""


def encode(entry: Header | Event) -> bytes:
    """One line, with its end."""
    text = json.dumps(_plain(_fields(entry)), sort_keys=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def _fields(entry: Header | Event) -> dict[str, Any]:
    match entry:
        case Header():
            return {"kind": "header", "version": VERSION, **asdict(entry)}
        case Said():
            return {"kind": "said", "message": entry.message, "used": entry.used}
        case Acted():
            timing = {"used": entry.used, "seconds": entry.seconds}
            return {"kind": "acted", **_turn_to_json(entry.turn), **timing}
        case Answered():
            found = {"messages": list(entry.messages), "gains": gains_to_json(entry.gains)}
            return {"kind": "answered", **found, "used": entry.used, "seconds": entry.seconds}
        case Resumed():
            return {"kind": "resumed", "at": entry.at}
        case Ended():
            return {"kind": "ended", **asdict(entry)}


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return _plain(dict(value))
    return str(value)


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    return {
        "content": turn.content,
        "calls": [asdict(call) for call in turn.calls],
        "truncated": turn.truncated,
        "tokens": turn.tokens and asdict(turn.tokens),
        "usage": turn.usage and asdict(turn.usage),
    }


def decode_header(line: bytes) -> Header:
    """The first line. Raises `LineError`, of a later version `LaterVersion`."""
    fields = _object(line)
    if fields.pop("kind", None) != "header":
        raise LineError("it is not the header of a trajectory")
    version = fields.pop("version", None)
    if isinstance(version, int) and version > VERSION:
        raise LaterVersion(f"it has version {version}; this release reads up to {VERSION}")
    if version != VERSION:
        raise LineError(f"version {version!r} is none")
    return _built(lambda: Header(**{name: _checked(name, v) for name, v in fields.items()}))


def _checked(name: str, value: Any) -> Any:
    """A field of the header. Raises `LineError` with its name where it is not what it should be."""
    match name:
        case "machine" | "flags":
            good = isinstance(value, dict)
        case "turns":
            good = isinstance(value, int) and not isinstance(value, bool)
        case "started":
            good = _is_number(value) and 0 <= value < YEAR_10000
        case "budget_s":
            good = _is_number(value) or value in ("inf", "-inf", "nan")
        case _:
            good = isinstance(value, str)
    if not good:
        raise LineError(f"{name[:80]} of the header cannot be {str(value)[:80]!r}")
    return float(value) if name in ("started", "budget_s") else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def decode(line: bytes) -> Event:
    """Another line. Raises `LineError`."""
    fields = _object(line)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _READERS:
        raise LineError(f"no event is called {str(kind)[:80]!r}")
    return _built(lambda: _READERS[kind](fields))


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise LineError("it is not a JSON object")
    return value


def _built(make: Callable[[], T]) -> T:
    try:
        return make()
    except LineError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LineError(f"{type(error).__name__}: {str(error)[:200]}") from None


def _said(fields: dict[str, Any]) -> Said:
    return Said(_message(fields.pop("message")), **_numbers(fields))


def _acted(fields: dict[str, Any]) -> Acted:
    turn = _turn_from_json({n: fields.pop(n) for n in (*_TURN, "tokens", "usage")})
    return Acted(turn, **_numbers(fields))


def _answered(fields: dict[str, Any]) -> Answered:
    messages = tuple(_message(message) for message in fields.pop("messages"))
    return Answered(messages, gains_from_json(fields.pop("gains")), **_numbers(fields))


def _ended(fields: dict[str, Any]) -> Ended:
    if fields["stop"] not in STOPS:
        raise LineError(f"no episode stops for {str(fields['stop'])[:80]!r}")
    return Ended(**fields)


_TURN = ("content", "calls", "truncated")
_READERS: dict[str, Callable[[dict[str, Any]], Event]] = {
    "said": _said,
    "acted": _acted,
    "answered": _answered,
    "resumed": lambda fields: Resumed(**_numbers(fields)),
    "ended": _ended,
}


def _numbers(fields: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in fields.items()}


def _message(value: Any) -> Message:
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        raise LineError("a message has no role")
    if not isinstance(value.get("content"), str):
        raise LineError("a message has no text")
    return value


def _turn_from_json(fields: Mapping[str, Any]) -> Turn:
    tokens, usage = fields["tokens"], fields["usage"]
    return Turn(
        fields["content"],
        tuple(ToolCall(**call) for call in fields["calls"]),
        fields["truncated"],
        tokens and _tokens(**tokens),
        usage and Usage(**usage),
    )


def _tokens(prompt: list[int], ids: list[int], logprobs: list[Any], follows: bool) -> Tokens:
    return Tokens(tuple(prompt), tuple(ids), tuple(map(float, logprobs)), follows)
