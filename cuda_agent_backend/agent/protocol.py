"""What passes between a policy and its environment: chat messages with tool calls, in the OpenAI format.

A policy sees the messages so far and the tools' schemas, and answers with one assistant message. Everything on
the wire is a plain dictionary, so that a hosted model, a local one, a search and a replay are interchangeable.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Message = dict[str, Any]
Schema = dict[str, Any]
OUT_OF_TIME = "The time is up. Submit what is best; nothing else is done any more."
"""What a policy is told when its time has ended."""
LAST_TURNS = 2
"""Turns in which a policy may submit what it has after the time is up."""
CUT_OFF = "Your message was cut off; its tool calls were not run."
MAX_MESSAGE = 600
MAX_ARGUMENTS = 1 << 21
"""Characters of one call's arguments."""
MAX_DEPTH = 100
"""How deep lists and objects in them may lie in each other."""


@dataclass(frozen=True)
class ToolCall:
    """One call. ``arguments`` is JSON text exactly as the policy wrote it; it may be malformed."""

    id: str
    name: str
    arguments: str

    @staticmethod
    def of(id: str, name: str, **arguments: Any) -> ToolCall:
        """A call with ``arguments`` encoded."""
        return ToolCall(id, name, json.dumps(arguments, sort_keys=True))


@dataclass(frozen=True)
class Tokens:
    """A turn as a model sampled it, for training: never encoded anew from text.

    prompt: ids that the model was given (all of them, or where ``follows`` those after what it was given and said in
    the turn before). ids: what it sampled; logprobs: of each, natural logarithm, under the temperature it sampled with.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    follows: bool = False


@dataclass(frozen=True)
class Usage:
    """What a turn took: tokens read and written, and what that cost in the currency of the price list, if known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True)
class Turn:
    """One policy message. ``truncated``: the policy was cut off; its calls are then never run."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    truncated: bool = False
    tokens: Tokens | None = None
    usage: Usage | None = None

    def to_message(self) -> Message:
        """The message in the OpenAI format."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": c.id,
                    "type": "function",
                    "function": {"name": c.name, "arguments": c.arguments},
                }
                for c in self.calls
            ]
        return message


StopKind = Literal["infrastructure", "context", "cost"]
"""Why a policy has no next message: what it runs on failed (its episode may be resumed, and says nothing of the task),
the conversation does not fit its context, or its allowance is spent."""


@dataclass(frozen=True)
class Stopped:
    """A policy cannot go on. An expected failure, so a value."""

    kind: StopKind
    reason: str


class Policy(Protocol):
    """Chooses the next message. ``name`` goes into the evidence of what it found.

    One policy object may serve several episodes at once where its class says so; `SearchPolicy` has state and does not.
    """

    @property
    def name(self) -> str: ...

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """The next message, given all so far (the last ones are tool results, if calls were made)."""
        ...


@contextlib.contextmanager
def closed(policy: Policy) -> Iterator[None]:
    """Have a policy give up what it holds, such as connections, at the end."""
    try:
        yield
    finally:
        getattr(policy, "close", lambda: None)()


class BadArguments(ValueError):
    """Arguments of a tool call do not fit its schema; the message tells the policy what to change."""

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} ...")


def tool_message(call: ToolCall, result: Mapping[str, Any]) -> Message:
    """A tool's answer to ``call``."""
    return {
        "role": "tool",
        "tool_call_id": call.id,
        "name": call.name,
        "content": json.dumps(result, sort_keys=True),
    }


def _depth(value: Any) -> int:
    """How deep lists and objects lie in each other, looked at level by level."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner = [v for v in level if isinstance(v, dict | list)]
        level = [x for v in inner for x in (v.values() if isinstance(v, dict) else v)]
        depth += 1
    return depth


def parse_arguments(call: ToolCall, schema: Schema) -> dict[str, Any]:
    """The call's arguments, checked against the JSON schema of its tool.

    Raises:
        BadArguments: not a JSON object, or not what the schema asks for; it names the argument and what is wrong.
    """
    if len(call.arguments) > MAX_ARGUMENTS:
        raise BadArguments(f"arguments of {call.name} have more than {MAX_ARGUMENTS} characters")
    try:
        arguments = _decoded(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise BadArguments(f"arguments of {call.name} are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise BadArguments(f"arguments of {call.name} must be a JSON object")
    if _depth(arguments) > MAX_DEPTH:
        raise BadArguments(f"arguments of {call.name} are nested deeper than {MAX_DEPTH}")
    parameters = schema["function"]["parameters"]
    for name in arguments:
        if name not in parameters["properties"]:
            known = ", ".join(parameters["properties"]) or "none"
            raise BadArguments(f"{call.name} has no argument {name[:100]!r}; it takes: {known}")
    missing = [n for n in parameters.get("required", []) if n not in arguments]
    if missing:
        raise BadArguments(f"{call.name} needs {', '.join(missing)}")
    _check(call.name, arguments, parameters)
    return arguments


def _decoded(text: str) -> Any:
    """JSON as Python values. 1.0 is an integer to JSON schema, and some models write all numbers so: it becomes one."""
    return json.loads(text, parse_constant=_no_constant, parse_float=_number)


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check(tool: str, arguments: dict[str, Any], parameters: Schema) -> None:
    """Raise BadArguments with what is wrong first, in the order of the arguments."""
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(parameters).iter_errors(arguments):
        place = "".join(f"[{p!r}]" for p in list(error.absolute_path)[1:])
        named = (
            f"argument {error.absolute_path[0]!r}{place}" if error.absolute_path else "arguments"
        )
        raise BadArguments(f"{named} of {tool}: {_in_words(error)}")


def _in_words(error: Any) -> str:
    """Without the value where that may be long: a model knows what it wrote."""
    wanted = error.validator_value
    match error.validator:
        case "type":
            return f"must be of type {wanted}"
        case "anyOf":
            kinds = " or ".join(str(way.get("type")) for way in wanted)
            return f"must be {kinds}, within its limits"
        case "minLength" | "minItems":
            return f"must have at least {wanted} {_COUNTED[error.validator]}"
        case "maxLength" | "maxItems":
            return f"must have at most {wanted} {_COUNTED[error.validator]}"
    return str(error.message)


_COUNTED = {"minLength": "characters", "maxLength": "characters", "minItems": "items", "maxItems": "items"}  # fmt: skip
