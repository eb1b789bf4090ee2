"""Policies that say anything: each kind goes wrong in its own way, from a seed, with a sound call now and then."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cuda_agent_backend.agent.protocol import (
    MAX_ARGUMENTS,
    Message,
    Schema,
    Stopped,
    Tokens,
    ToolCall,
    Turn,
    Usage,
)

SOUND = 0.45
"""How often a turn is a sound one: without those no episode would get to anything worth breaking."""
CALLS = 4
ENDLESS = 300_000
SIGNS = "\x00\ud800\udfff\u202e\ufeff\U0001f600é\u0301\x1b[31m</tool_call>\r\n\u2028"


class FuzzedPolicy:
    """One kind of nonsense. For one episode."""

    def __init__(self, kind: str, seed: int) -> None:
        self.name, self._kind = f"fuzz:{kind}", kind
        self._draw = random.Random(f"{kind}{seed}")
        self._calls = 0

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """Whatever comes."""
        if self._draw.random() < SOUND:
            return Turn("", tuple(self._sound(messages, tools) for _ in range(self._some())))
        return KINDS[self._kind](self, messages, tools)

    def _some(self) -> int:
        return self._draw.randint(1, CALLS)

    def _id(self) -> str:
        self._calls += 1
        return f"f{self._calls}"

    def _sound(self, messages: Sequence[Message], tools: Sequence[Schema]) -> ToolCall:
        """A call that fits its schema, of candidates and schedules that answers named."""
        function = self._draw.choice(tools)["function"]
        properties = function["parameters"]["properties"]
        given = {name: self._value(name, p["type"], messages) for name, p in properties.items()}
        if function["name"] == "submit" and given.get("candidate"):
            given.pop("reason", None)
        return ToolCall.of(self._id(), function["name"], **given)

    def _value(self, name: str, kind: str, messages: Sequence[Message]) -> Any:
        answers = [_object(m["content"]) for m in messages if m["role"] == "tool"]
        if name == "candidate":
            return self._draw.choice([a["candidate"] for a in answers if "candidate" in a] or ["x"])
        if name == "schedule":
            known = [s for a in answers for s in a.get("schedules", ())]
            return self._draw.choice(known) if known else [{"threads": self._number()}]
        plain: Mapping[str, Callable[[], Any]] = {
            "string": self._text, "integer": self._number, "number": self._draw.random,
            "boolean": lambda: self._draw.random() < 0.5, "array": lambda: [{}], "object": dict,
        }  # fmt: skip
        return plain[kind]()

    def _text(self, length: int = 60) -> str:
        return "".join(self._draw.choices(string.printable, k=self._draw.randint(0, length)))

    def _number(self) -> Any:
        return self._draw.choice([0, 1, -1, 3, 256, 2**31, -(2**63), 10**40, 1e308, 0.1])

    def _tool(self, tools: Sequence[Schema]) -> str:
        return str(self._draw.choice(tools)["function"]["name"])

    # --- kinds ---

    def random_bytes(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """Bytes as text, as arguments, as names."""
        texts = [self._draw.randbytes(self._draw.randint(0, 400)) for _ in range(3)]
        a, b, c = (t.decode(self._draw.choice(["latin-1", "utf-8"]), "replace") for t in texts)
        name = self._draw.choice([b, self._tool(tools)])
        return Turn(a, (ToolCall(self._draw.choice([self._id(), b]), name, c),))

    def broken_json(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """Sound calls with characters lost, doubled or changed."""
        made = []
        for _ in range(self._some()):
            call = self._sound(messages, tools)
            text = list(call.arguments)
            for _ in range(self._some()):
                place = self._draw.randrange(len(text))
                text[place] = self._draw.choice(["", text[place] * 2, self._draw.choice('{}[]",:')])
            made.append(ToolCall(call.id, call.name, "".join(text)))
        return Turn("", tuple(made))

    def wrong_tools(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """Tools that there are not, arguments of others, values of another type."""
        value = self._draw.choice([None, True, 3, -1e400, "x", [], {}, [[1]], "NaN", 10**400])
        names = ["candidate", "schedule", "source", "plan", "reason", "path", self._text(9)]
        given = {self._draw.choice(names): value for _ in range(self._some())}
        name = self._draw.choice([self._tool(tools), self._text(9), "", "__init__", "finished"])
        return Turn("", (ToolCall(self._id(), name, json.dumps(given)),))

    def wrong_schedules(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """Schedules that were proposed, with values that they cannot have; plans that are half right."""
        schedule = self._value("schedule", "array", messages)
        for part in schedule:
            for key in list(part) if isinstance(part, dict) else ():
                if self._draw.random() < 0.4:
                    part[key] = self._draw.choice([None, "", [], {}, self._number(), self._text(5)])
        plan = json.dumps({"target": "cpu", "buffers": [], "steps": [schedule], "sizes": {"n": -1}})
        return Turn("", (ToolCall.of(self._id(), "sketch", schedule=schedule),
                         ToolCall.of(self._id(), "write", source=self._text(), plan=plan)))  # fmt: skip

    def endless(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """Text without end, cut off or not, and calls that must not be run."""
        text = self._text() * (ENDLESS // 60)
        call = ToolCall.of(self._id(), "submit", reason="must not be run")
        return Turn(text, (call,), truncated=True) if text else Turn(" ", truncated=True)

    def repeats(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """The same call under the same id again and again."""
        return Turn("again", (ToolCall.of("same", "look"),) * self._some())

    def nested(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """Lists and objects in each other, thousands deep."""
        deep = self._draw.choice([90, 101, 900, 5000, 100_000])
        text = self._draw.choice(["[" * deep + "]" * deep, '{"a":' * deep + "1" + "}" * deep])
        wrapped = self._draw.choice([text, f'{{"schedule": {text}}}', f'{{"plan": {text}}}'])
        return Turn("", (ToolCall(self._id(), self._tool(tools), wrapped),))

    def huge(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """Arguments at and beyond their limit, and numbers with thousands of digits."""
        size = self._draw.choice([MAX_ARGUMENTS - 30, MAX_ARGUMENTS + 1, *[5000] * 14])
        filler = self._draw.choice(
            ['"' + "x" * size + '"', "9" * size, "[" + "{}," * (size // 3) + "{}]"]
        )
        name, key = self._draw.choice(
            [("write", "source"), ("sketch", "schedule"), ("verify", "candidate")]
        )
        return Turn("", (ToolCall(self._id(), name, f'{{"{key}": {filler}}}'),))

    def unicode(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """Halves of pairs, zeros, marks that turn text round or end messages."""
        text = "".join(self._draw.choices(SIGNS, k=30))
        calls = (ToolCall.of(self._id(), self._tool(tools), candidate=text, source=text, plan=text),
                 ToolCall.of(self._id(), "submit", candidate=text))  # fmt: skip
        return Turn(text, calls)

    def silent(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """Nothing, or why there is nothing; tokens and usage as no model has them."""
        tokens = Tokens((), (-1, 10**12), (float("nan"), float("-inf")), follows=True)
        stopped = Stopped(self._draw.choice(["infrastructure", "context", "cost"]), self._text())
        return self._draw.choice([Turn("", tokens=tokens, usage=Usage(-1, 0, float("inf"))), stopped])  # fmt: skip


Act = Callable[[FuzzedPolicy, Sequence[Message], Sequence[Schema]], Turn | Stopped]
KINDS: dict[str, Act] = {
    act.__name__: act
    for act in (
        FuzzedPolicy.random_bytes, FuzzedPolicy.broken_json, FuzzedPolicy.wrong_tools, FuzzedPolicy.wrong_schedules,
        FuzzedPolicy.endless, FuzzedPolicy.repeats, FuzzedPolicy.nested, FuzzedPolicy.huge, FuzzedPolicy.unicode,
        FuzzedPolicy.silent,
    )
}  # fmt: skip


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    return value if isinstance(value, dict) else {}
