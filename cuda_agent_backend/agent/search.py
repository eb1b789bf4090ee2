"""The search policy: no model, a plan. It looks, tries the schedules proposed in order of promise, submits the best.

It stops before trying anything where the baselines already run at the roofline floor, and stops trying once
a round of schedules brings nothing over the best so far.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cuda_agent_backend.agent.protocol import Message, Schema, ToolCall, Turn

WORTH_SUBMITTING = 1.04
"""A quick profile's median below this is not worth a full judgement, whose lower bound must exceed 1.05."""
NOISY_TRIES = 3
"""Judgements that a busy machine may spoil before the search goes on without them."""
LIMIT = 1.10
"""Room below this is not worth a search: winning by 5 % would take a kernel within a few percent of the floor."""


@dataclass
class SearchPolicy:
    """Tries ``round_size`` schedules at a time, at most ``rounds`` rounds, then submits up to ``submissions``."""

    round_size: int = 4
    rounds: int = 3
    submissions: int = 2
    name: str = "search"
    works_with_files: ClassVar[bool] = False
    _schedules: list[Any] = field(default_factory=list)
    _tried: int = 0
    _queue: list[str] = field(default_factory=list)
    _speed: dict[str, float] = field(default_factory=dict)
    _round_best: list[float] = field(default_factory=list)
    _submitted: list[str] = field(default_factory=list)
    _refused: str = ""
    _noisy: int = 0
    _errors: list[str] = field(default_factory=list)
    _calls: int = 0

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """The next step of the plan, read off the last tool results."""
        last = messages[-1]
        if last["role"] != "tool":
            if self._calls:
                return self._time_is_up(messages[:-1])
            return self._turn("Look at the task first.", ("look", {}))
        results = self._last_results(messages)
        kind = results[-1][0]
        if kind == "look":
            return self._after_look(results[-1][1])
        if kind == "sketch":
            self._queue = list(dict.fromkeys(r["candidate"] for _, r in results if r.get("ok")))
            self._errors += [str(r.get("error")) for _, r in results if not r.get("ok")]
            return self._profile_round()
        if kind == "profile":
            return self._after_profile(messages, results)
        return self._after_submit(results[-1][1])

    def _after_look(self, look: dict[str, Any]) -> Turn:
        if not look.get("ok"):
            return self._give_up(f"baselines: {look.get('error')}")
        if look["room"] < LIMIT:
            return self._give_up(
                f"at the limit: baseline within {look['room']:.2f}x of the roofline floor"
            )
        if look.get("sketch") is None:
            return self._give_up(f"no sketch covers it: {look.get('why_not')}")
        self._schedules = look["schedules"]
        return self._next_round()

    def _next_round(self) -> Turn:
        batch = self._schedules[self._tried : self._tried + self.round_size]
        self._tried += len(batch)
        if not batch:
            return self._submit_next()
        return self._turn(
            "Compile the next schedules.", *[("sketch", {"schedule": s}) for s in batch]
        )

    def _profile_round(self) -> Turn:
        if not self._queue:
            return self._next_round()
        return self._turn("Time them.", *[("profile", {"candidate": c}) for c in self._queue])

    def _after_profile(
        self, messages: Sequence[Message], results: list[tuple[str, dict[str, Any]]]
    ) -> Turn:
        self._note_speeds(messages, results)
        best = max(self._speed.values(), default=0.0)
        improved = best > 1.03 * max(self._round_best, default=0.0)
        self._round_best.append(best)
        if improved and len(self._round_best) < self.rounds:
            return self._next_round()
        return self._submit_next()

    def _note_speeds(
        self, messages: Sequence[Message], results: list[tuple[str, dict[str, Any]]]
    ) -> None:
        names = [json.loads(c["function"]["arguments"])["candidate"] for c in _last_calls(messages)]
        for name, (_, result) in zip(names, results, strict=True):
            if "speedup" in result:
                self._speed[name] = result["speedup"]["median"]
            else:
                self._errors.append(str(result.get("reason") or result.get("error")))

    def _time_is_up(self, messages: Sequence[Message]) -> Turn:
        results = self._last_results(messages)
        if results and results[-1][0] == "profile":
            self._note_speeds(messages, results)
        return self._submit_next()

    def _after_submit(self, result: dict[str, Any]) -> Turn:
        if result.get("status") == "noisy" and self._noisy < NOISY_TRIES:
            self._noisy += 1  # says nothing of the candidate: the same one again
            return self._turn(
                "The machine was busy; again.", ("submit", {"candidate": self._submitted[-1]})
            )
        self._refused = self._refused or str(result.get("reason"))
        return self._submit_next()

    def _submit_next(self) -> Turn:
        left = sorted(
            (n for n in self._speed if n not in self._submitted), key=lambda n: -self._speed[n]
        )
        if (
            left
            and self._speed[left[0]] >= WORTH_SUBMITTING
            and len(self._submitted) < self.submissions
        ):
            self._submitted.append(left[0])
            return self._turn("Have the best one judged.", ("submit", {"candidate": left[0]}))
        if self._speed:
            best = f"best of {len(self._speed)} candidates {max(self._speed.values()):.2f}x"
            refused = self._refused and f", refused: {self._refused}"
            return self._give_up(f"nothing wins: {best}{refused}")
        return self._give_up(
            f"no candidate works: {self._errors[0] if self._errors else 'none could be made'}"
        )

    def _give_up(self, reason: str) -> Turn:
        return self._turn(reason, ("submit", {"reason": reason}))

    def _turn(self, content: str, *calls: tuple[str, dict[str, Any]]) -> Turn:
        made = []
        for name, arguments in calls:
            self._calls += 1
            made.append(ToolCall.of(f"call_{self._calls}", name, **arguments))
        return Turn(content, tuple(made))

    @staticmethod
    def _last_results(messages: Sequence[Message]) -> list[tuple[str, dict[str, Any]]]:
        results: list[tuple[str, dict[str, Any]]] = []
        for message in reversed(messages):
            if message["role"] != "tool":
                break
            results.append((message["name"], json.loads(message["content"])))
        return results[::-1]


def _last_calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    assistant = next(m for m in reversed(messages) if m["role"] == "assistant")
    return list(assistant["tool_calls"])
