"""The expert as a policy: it plays a script of versions, and decides only which of them to submit, by their profiles.

Like any policy it sees messages and nothing else. It looks and reads SKILL.md; writes, compiles, verifies and profiles
a first version; edits it or writes another file for each further one; submits the fastest, and the next one if a
judgement refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from benchmarks.agent_expert.script import Version
from cuda_agent_backend.agent.protocol import Message, Schema, ToolCall, Turn

Call = tuple[str, dict[str, Any]]
Results = list[dict[str, Any]]
SUBMISSIONS = 2
ENOUGH, AT_LEAST = 2.0, 2
"""Once a version is so much faster than the baseline, and so many were tried, no more are."""
NOISY_TRIES = 3
"""Judgements of one candidate that a busy machine may spoil."""


@dataclass
class ExpertPolicy:
    """Plays one task's versions. It has state: one object for each episode."""

    versions: Sequence[Version]
    submissions: int = SUBMISSIONS
    noisy_tries: int = NOISY_TRIES
    name: str = "expert"
    speeds: dict[str, float] = field(default_factory=dict)
    """Median speed-up of each candidate that was profiled, by name."""
    _play: Any = None
    _calls: int = 0

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        """The next message of the play, given what the tools answered to the last one."""
        if self._play is None:
            self._play = self._script()
            content, calls = next(self._play)
        elif messages[-1]["role"] != "tool":
            content, calls = "The time is up.", [self._submit_best()]
        else:
            content, calls = self._play.send(_last_results(messages))
        return Turn(content, tuple(map(self._call, calls)))

    def _call(self, call: Call) -> ToolCall:
        self._calls += 1
        return ToolCall.of(f"call_{self._calls}", call[0], **call[1])

    def _submit_best(self) -> Call:
        if not self.speeds:
            return ("submit", {"reason": "there was no time for a profile"})
        return ("submit", {"candidate": max(self.speeds, key=lambda n: self.speeds[n])})

    def _script(self) -> Iterator[tuple[str, list[Call]]]:
        """Yields what to say and the calls to make, and is sent their answers."""
        look, *_ = yield (
            "First the rules and the baselines.",
            [("look", {}), ("read", {"path": "SKILL.md"})],
        )
        if not look.get("ok"):
            yield (
                "Without baselines nothing can be judged.",
                [_give_up(f"baselines: {look.get('error')}")],
            )
        before: Version | None = None
        for number, version in enumerate(self.versions):
            if number >= AT_LEAST and max(self.speeds.values(), default=0.0) >= ENOUGH:
                break
            yield from self._try(version, before, verify=number == 0)
            before = version
        yield from self._submit_in_order()

    def _try(
        self, version: Version, before: Version | None, verify: bool
    ) -> Iterator[tuple[str, list[Call]]]:
        """Write a version, compile it, and, if it compiles, profile it."""
        plan = f"{PurePath(version.file).stem}.json"
        calls = _writing(
            version.file, version.source, before and before.file == version.file and before.source
        )
        calls += _writing(
            plan, version.plan, before and before.file == version.file and before.plan
        )
        compiling: Call = ("compile", {"source": version.file, "plan": plan})
        *_, made = yield version.say, [*calls, compiling]
        if not made.get("ok"):
            return
        name = made["candidate"]
        if verify:
            (right,) = yield "Is it right?", [("verify", {"candidate": name})]
            if not right.get("ok"):
                return
        (timed,) = yield "How fast is it?", [("profile", {"candidate": name})]
        if timed.get("ok") and "speedup" in timed:
            self.speeds[name] = timed["speedup"]["median"]

    def _submit_in_order(self) -> Iterator[tuple[str, list[Call]]]:
        best = sorted(self.speeds, key=lambda n: -self.speeds[n])[: self.submissions]
        refused = "no version works"
        for name in best:
            for _ in range(self.noisy_tries):
                (verdict,) = yield (
                    "The fastest one that is left.",
                    [("submit", {"candidate": name})],
                )
                refused = str(verdict.get("reason"))
                if verdict.get("status") != "noisy":
                    break
        while True:
            yield "Nothing wins.", [_give_up(f"nothing wins: {refused}")]


def _give_up(reason: str) -> Call:
    return ("submit", {"reason": reason})


def _writing(path: str, text: str, before: str | bool | None) -> list[Call]:
    """The calls that turn what is in the file, if anything, into ``text``."""
    if not isinstance(before, str):
        return [("write", {"path": path, "content": text})]
    edits = line_edits(before, text)
    if edits is None:
        return [("write", {"path": path, "content": text})]
    return [("multi_edit", {"path": path, "edits": edits})] if edits else []


def line_edits(before: str, after: str) -> list[dict[str, str]] | None:
    """Replacements of single lines that turn one text into the other; None where that is not how they differ.

    Each old line must occur once, in what the edits before it have made of the text.
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    if len(old) != len(new):
        return None
    edits = []
    text = before
    for a, b in zip(old, new, strict=True):
        if a == b:
            continue
        if text.count(a) != 1:
            return None
        text = text.replace(a, b)
        edits.append({"old": a, "new": b})
    return edits if text == after else None


def _last_results(messages: Sequence[Message]) -> Results:
    """The answers to the last message's calls, in order."""
    found: Results = []
    for message in reversed(messages):
        if message["role"] != "tool":
            break
        found.append(json.loads(message["content"]))
    return found[::-1]
