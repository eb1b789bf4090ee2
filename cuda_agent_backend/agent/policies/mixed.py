"""Mixtures of the search and another policy: ``search+NAME`` and ``NAME+search``.

``search+NAME`` lets the search work until it would have something judged. Then a turn of its own says in the
conversation what its best candidate is, with its schedule, and the other policy goes on from there. What the search
held back is judged when the other one has come to an end, or when the time is up.

``NAME+search`` lets the other policy work until it would end, or have a sketch judged. Then the search tries schedules,
those nearest to the other one's best first, that one itself before all. When the time is up, what is fastest is judged.

Where the other policy could not go on, the mixture stops for that reason once the search's part has found no winner.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuda_agent_backend.agent.policies.findings import Finding, findings_of, nearest_first
from cuda_agent_backend.agent.policies.registry import make_policy
from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.agent.protocol import (
    OUT_OF_TIME,
    Message,
    Policy,
    Schema,
    Stopped,
    ToolCall,
    Turn,
)

SEARCH = "search"
HANDED_OVER = (
    "Schedules were searched. The best is candidate {name}: {speed:.2f}x the faster baseline, from the sketch under the"
    " schedule {schedule}. It is kept, and judged at the end if nothing better is found. Its machine code first."
)


def make(spec: PolicySpec) -> SearchFirst | SearchLast:
    """Raises `ImportError` as the parts do."""
    first, _, second = spec.name.partition("+")
    if first == SEARCH:
        return SearchFirst(spec.label, _part(spec, SEARCH), _part(spec, second))
    return SearchLast(spec.label, _part(spec, first), _part(spec, SEARCH))


def _part(spec: PolicySpec, name: str) -> Policy:
    return make_policy(PolicySpec() if name == SEARCH else replace(spec, name=name))


class _Mixed:
    def __init__(self, name: str, first: Policy, second: Policy) -> None:
        self.name, self.first, self.second = name, first, second
        self._stopped: Stopped | None = None
        """Why the model could not go on."""

    def close(self) -> None:
        """Close the parts."""
        for part in (self.first, self.second):
            getattr(part, "close", lambda: None)()

    def resume(self, messages: Sequence[Message], schemas: Sequence[Schema]) -> str:
        """Why it cannot go on with an episode of another process."""
        return "a mixture of policies begins anew" if messages else ""

    def _note(self, model: Turn | Stopped | None) -> None:
        self._stopped = model if isinstance(model, Stopped) else None

    def _ended(self, turn: Turn | Stopped) -> Turn | Stopped:
        """The search's turn; where it gives up, the model's stop instead: that the search ended does not say it all."""
        if self._stopped is None or _candidate(turn) or not _submits(turn):
            return turn
        said = turn.content if isinstance(turn, Turn) else turn.reason
        return replace(self._stopped, reason=f"{self._stopped.reason}; the search: {said}")


class SearchFirst(_Mixed):
    """The search, and then a model. For one episode."""

    def __init__(self, name: str, search: Policy, model: Policy) -> None:
        super().__init__(name, search, model)
        self._held: Turn | None = None
        self._phase = 1

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """The next message, of whoever's turn it is."""
        over = _over(messages)
        if self._phase == 1:
            turn = _named(self.first.act(messages, tools))
            if over or isinstance(turn, Stopped) or not _submits(turn):
                return turn
            self._phase, self._held = 2, turn if _candidate(turn) else None
            if best := _best(messages):
                return _handing_over(best)
        if self._phase == 2:
            model = None if over else self.second.act(messages, tools)
            if isinstance(model, Turn) and (_goes_on(model) or _candidate(model)):
                return model
            self._note(model)
            self._phase = 3
            if over and (best := _best(messages)):
                return _submission(best)
            if self._held is None:
                return model or Stopped("context", "the time is up")
            return self._held
        return self._ended(_named(self.first.act(messages, tools)))


class SearchLast(_Mixed):
    """A model, and then the search around its best schedule. For one episode."""

    def __init__(self, name: str, model: Policy, search: Policy) -> None:
        super().__init__(name, model, search)
        self._held: Turn | None = None
        self._from: int | None = None
        self._schedule: list[Any] = []

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """The next message, of whoever's turn it is."""
        if _over(messages):
            return self._last(messages, tools)
        if self._from is None:
            model = self.first.act(messages, tools)
            if isinstance(model, Turn) and _goes_on(model):
                return model
            self._note(model)
            held = _only_submitting(model) if isinstance(model, Turn) else None
            best = _best(messages)
            if held is not None and (best is None or best.name != _candidate(held)):
                return held  # its own source, of which the search knows nothing
            self._held, self._from = held, len(messages)
            self._schedule = best.schedule if best else []
            return _named(self.second.act([messages[0]], tools))
        turn = _named(self.second.act(self._view(messages), tools))
        if isinstance(turn, Turn) and _submits(turn) and not _candidate(turn) and self._held:
            turn, self._held = self._held, None
        return self._ended(turn)

    def _last(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """A turn after the time is up, in which nothing but a submission is carried out."""
        model = self.first.act(messages, tools) if self._from is None else None
        if isinstance(model, Turn) and _candidate(model):
            return _only_submitting(model) or model
        if best := _fastest_left(messages):
            return _submission(best)
        return model or self._stopped or Stopped("context", "the time is up")

    def _view(self, messages: Sequence[Message]) -> list[Message]:
        """What the search sees: its own part, with the schedules proposed in another order."""
        seen = [messages[0], *messages[self._from :]]
        return [nearest_first(message, self._schedule) for message in seen]


def _best(messages: Sequence[Message]) -> Finding | None:
    """The fastest candidate that is from a sketch."""
    found = [f for f in findings_of(messages) if f.schedule]
    return max(found, key=lambda f: f.speed, default=None)


def _fastest_left(messages: Sequence[Message]) -> Finding | None:
    """The fastest candidate, from wherever, of which no judgement has said anything."""
    asked: dict[str, str] = {}
    judged = set()
    for message in messages:
        asked |= {c["id"]: c["function"]["arguments"] for c in message.get("tool_calls", ())}
        if message["role"] != "tool" or message["name"] != "submit":
            continue
        if _text_in(message["content"], "status") != "noisy":
            judged.add(_text_in(asked.get(message["tool_call_id"], ""), "candidate"))
    left = [f for f in findings_of(messages) if f.name not in judged]
    return max(left, key=lambda f: f.speed, default=None)


def _over(messages: Sequence[Message]) -> bool:
    """Whether the time is up: said once, and true for all turns after it."""
    return any(m["role"] == "user" and m.get("content") == OUT_OF_TIME for m in messages)


def _goes_on(turn: Turn) -> bool:
    return turn.truncated or (bool(turn.calls) and not _submits(turn))


def _submits(turn: Turn | Stopped) -> bool:
    return isinstance(turn, Turn) and any(call.name == "submit" for call in turn.calls)


def _candidate(turn: Turn | Stopped) -> str:
    """The candidate that a turn would have judged."""
    for call in turn.calls if isinstance(turn, Turn) else ():
        if call.name == "submit" and (name := _text_in(call.arguments, "candidate")):
            return name
    return ""


def _text_in(text: str, name: str) -> str:
    """What a JSON object has under a name, if that is a text."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return ""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def _only_submitting(turn: Turn) -> Turn | None:
    """A turn's submission without its other calls; None where it has none."""
    calls = [c for c in turn.calls if c.name == "submit" and _text_in(c.arguments, "candidate")]
    return replace(turn, calls=(calls[0],)) if calls else None


def _named(turn: Turn | Stopped) -> Turn | Stopped:
    """The search counts its calls, and so may a model: ids must differ."""
    if isinstance(turn, Stopped):
        return turn
    return replace(turn, calls=tuple(replace(c, id=f"search_{c.id}") for c in turn.calls))


def _handing_over(best: Finding) -> Turn:
    text = HANDED_OVER.format(name=best.name, speed=best.speed, schedule=json.dumps(best.schedule))
    return Turn(text, (ToolCall.of("search_best", "inspect", candidate=best.name),))


def _submission(best: Finding) -> Turn:
    return Turn("The time is up.", (ToolCall.of("search_last", "submit", candidate=best.name),))
