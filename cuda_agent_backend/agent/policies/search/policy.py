"""The search policy: no language model. It looks, tries schedules, and has the best judged.

First come schedules that won on neighbours of the task, then the proposals, best guess first; after that a model of
what was timed (`surrogate`) says which schedule of the space around them is worth the next judgement. A judgement costs
far more than a compilation, so some schedules are compiled ahead, and each is timed only while the model wants it.

It stops before trying anything where the baselines already run at the roofline floor, and stops trying where the best
so far runs there, where nothing is left that is expected to be faster, or where its budget of judgements or seconds is
spent. It reads no clock: seconds are those that the tools say they took. Equal answers lead to equal steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent_backend.agent.policies.rebuild import decide_again
from cuda_agent_backend.agent.policies.search.tuner import LEAST_GAIN, Tuner
from cuda_agent_backend.agent.protocol import Message, Schema, ToolCall, Turn
from cuda_agent_backend.agent.tools.workbench import WORTH_SUBMITTING
from cuda_agent_backend.codegen.schedule_space import MOST
from sandbox.timing.roofline import NEAR

NOISY_TRIES = 3
"""Judgements that a busy machine may spoil before the search goes on without them."""
LIMIT = NEAR
"""Room below this is not worth a search: winning by 5 % would take a kernel within a few percent of the floor."""
AT_FLOOR = 1.03
"""A schedule within this of the roofline floor ends the search: nothing faster is to be had."""

Results = list[tuple[str, dict[str, Any]]]


@dataclass
class SearchPolicy:
    """Times up to ``judgements`` schedules for up to ``seconds``, then submits up to ``submissions``, and up to
    ``instead`` more for those that turned out wrong: another order of additions may be right. Where products of few
    parts are wrong, others that are more exact are timed in place of all that are not.

    ahead: schedules compiled at a time. modelled: whether a model chooses once ``first`` schedules were timed in order;
    otherwise, and without scikit-learn, rounds go on in order while one brings something. least_gain: the model ends
    the search where the expected improvement, a share of the best's time, is below it. at_floor: it ends within this
    factor of the floor. space: schedules that the model looks at. seed: the model's.
    """

    judgements: int = 20
    seconds: float = math.inf
    first: int = 4
    ahead: int = 4
    submissions: int = 2
    instead: int = 2
    modelled: bool = False
    least_gain: float = LEAST_GAIN
    at_floor: float = AT_FLOOR
    space: int = MOST
    seed: int = 0
    name: str = "search"
    _maybe_tuner: Tuner | None = None
    _room: float = math.inf
    _asked: list[int] = field(default_factory=list)
    _spent: float = 0.0
    _judged: int = 0
    _surely: float = 0.0
    _speed: dict[str, float] = field(default_factory=dict)
    _sure: dict[str, float] = field(default_factory=dict)
    _submitted: list[str] = field(default_factory=list)
    _refused: str = ""
    _wrong: int = 0
    _noisy: int = 0
    _errors: list[str] = field(default_factory=list)
    _calls: int = 0
    _over: bool = False

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """The next step, read off the last tool results."""
        last = messages[-1]
        if last["role"] != "tool":
            if self._calls:
                return self._time_is_up(messages[:-1])
            return self._turn("Look at the task first.", ("look", {}))
        results = _last_results(messages)
        kind = results[-1][0]
        if kind != "submit":
            self._spent += sum(_seconds(answer) for _, answer in results)
        if kind == "look":
            return self._after_look(results[-1][1])
        if kind == "sketch":
            return self._after_sketch(results)
        if kind == "profile":
            self._note_speeds(messages, results)
            return self._next()
        return self._after_submit(_last_calls(messages)[-1], results[-1][1])

    def resume(self, messages: Sequence[Message], tools: Sequence[Schema]) -> str:
        """Be where an episode was interrupted; "" or why that cannot be."""
        return decide_again(self, messages, tools)

    def _after_look(self, look: dict[str, Any]) -> Turn:
        if not look.get("ok"):
            return self._give_up(f"baselines: {look.get('error')}")
        if look["room"] < LIMIT:
            return self._give_up(
                f"at the limit: baseline within {look['room']:.2f}x of the roofline floor"
            )
        if look.get("sketch") is None:
            return self._give_up(f"no sketch covers it: {look.get('why_not')}")
        self._room = float(look["room"])
        self._maybe_tuner = Tuner.of(
            look, self.first, self.modelled, self.seed, self.least_gain, self.space
        )
        return self._next()

    @property
    def _tuner(self) -> Tuner:
        assert self._maybe_tuner is not None, "look comes first"
        return self._maybe_tuner

    def _next(self) -> Turn:
        """Time what the tuner wants, or compile that and what it wants after it, or end."""
        done = self._judged
        at_floor = self._surely * self.at_floor >= self._room
        if self._over or at_floor or done >= self.judgements or self._spent >= self.seconds:
            return self._submit_next()
        wanted = self._tuner.wanted(WORTH_SUBMITTING, min(self.ahead, self.judgements - done))
        if not wanted:
            return self._submit_next()
        ready = self._tuner.ready(wanted)
        if ready:
            names = [("profile", {"candidate": name}) for name in ready]
            return self._turn("Time what is most promising.", *names)
        self._asked = [row for row in wanted if self._tuner.is_new(row)]
        drafts = [("sketch", {"schedule": self._tuner.schedule(row)}) for row in self._asked]
        return self._turn("Compile the next schedules.", *drafts)

    def _after_sketch(self, results: Results) -> Turn:
        for row, (_, answer) in zip(self._asked, results, strict=True):
            if answer.get("ok"):
                self._tuner.made(row, str(answer["candidate"]))
            else:
                self._tuner.failed(row)
                self._errors.append(str(answer.get("error")))
        return self._next()

    def _note_speeds(self, messages: Sequence[Message], results: Results) -> None:
        names = [json.loads(c["function"]["arguments"])["candidate"] for c in _last_calls(messages)]
        self._judged += len(names)
        for name, (_, result) in zip(names, results, strict=True):
            if "speedup" in result:
                self._speed[name] = result["speedup"]["median"]
                self._sure[name] = result["speedup"]["low"]
                self._surely = max(self._surely, self._sure[name])
                self._tuner.timed(name, result["speedup"])
            else:
                self._tuner.spoiled(name)
                self._errors.append(str(result.get("reason") or result.get("error")))
        answers = zip(names, (result for _, result in results), strict=True)
        wrong = [name for name, result in answers if result.get("status") == "wrong"]
        ruled_out = [self._rule_out(name) for name in wrong]
        if not any(ruled_out):
            self._tuner.end_round()

    def _time_is_up(self, messages: Sequence[Message]) -> Turn:
        self._over = True
        results = _last_results(messages)
        if results and results[-1][0] == "profile":
            self._note_speeds(messages, results)
        if results and results[-1][0] == "submit":
            self._note_verdict(_candidate(_last_calls(messages)[-1]), results[-1][1])
        return self._submit_next()

    def _after_submit(self, call: dict[str, Any], result: dict[str, Any]) -> Turn:
        """Go on after a judgement, of a candidate that may have been submitted by another policy."""
        judged = _candidate(call)
        if result.get("status") == "noisy" and self._noisy < NOISY_TRIES:
            self._noisy += 1  # says nothing of the candidate: the same one again
            return self._turn("The machine was busy; again.", ("submit", {"candidate": judged}))
        others = self._note_verdict(judged, result)
        return self._next() if others and self._may_submit else self._submit_next()

    def _note_verdict(self, judged: str, result: dict[str, Any]) -> bool:
        """Whether it brings others into play."""
        if judged not in self._submitted:
            self._submitted.append(judged)
        self._refused = self._refused or str(result.get("reason"))
        if result.get("status") != "wrong":
            return False
        self._wrong += 1
        return self._rule_out(judged)

    @property
    def _may_submit(self) -> bool:
        return len(self._submitted) < self.submissions + min(self._wrong, self.instead)

    def _rule_out(self, wrong: str) -> bool:
        """Forget candidates that multiply no more exactly than a wrong one; others may be tried in their place. Whether
        there are others."""
        if self._maybe_tuner is None:  # another policy's
            return False
        out = self._maybe_tuner.too_inexact(wrong)
        timed = out & set(self._speed)
        for name in timed:
            del self._speed[name]
        self._judged -= len(timed)
        self._surely = max((self._sure[name] for name in self._speed), default=0.0)
        return bool(out)

    def _submit_next(self) -> Turn:
        left = sorted(
            (n for n in self._speed if n not in self._submitted), key=lambda n: -self._speed[n]
        )
        if left and self._speed[left[0]] >= WORTH_SUBMITTING and self._may_submit:
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


def _last_results(messages: Sequence[Message]) -> Results:
    results: Results = []
    for message in reversed(messages):
        if message["role"] != "tool":
            break
        results.append((message["name"], json.loads(message["content"])))
    return results[::-1]


def _last_calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    assistant = next(m for m in reversed(messages) if m["role"] == "assistant")
    return list(assistant["tool_calls"])


def _candidate(call: dict[str, Any]) -> str:
    """Of a submission; empty where it gave up."""
    return str(json.loads(call["function"]["arguments"]).get("candidate", ""))


def _seconds(answer: dict[str, Any]) -> float:
    """What a tool says it took; nothing where it does not say."""
    value = answer.get("seconds", 0.0)
    return float(value) if isinstance(value, int | float) else 0.0
