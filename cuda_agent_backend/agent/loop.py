"""One episode: a policy works on a task until it submits a winner, gives up, or the budget ends.

Each step is decided by the conversation so far and what the tools hold, nothing else, and is recorded before the next.
So an episode whose process was killed goes on from its record as if it had never stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cuda_agent_backend import log
from cuda_agent_backend.agent.environment import first_messages
from cuda_agent_backend.agent.gains import Gains, gains_of, restore
from cuda_agent_backend.agent.protocol import (
    OUT_OF_TIME,
    Message,
    Policy,
    Stopped,
    ToolCall,
    Turn,
    tool_message,
)
from cuda_agent_backend.agent.tools.kernel_specs import COMPILING
from cuda_agent_backend.agent.tools.kernel_tools import WORTH_SUBMITTING
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.agent.trajectories.events import (
    Acted,
    Answered,
    Ended,
    Event,
    Resumed,
    Said,
    Stop,
    Trajectory,
)
from cuda_agent_backend.agent.workspace.policy_files import LEFT_OUT, MAX_RECORDED, size_of
from sandbox.plan.candidate import Candidate
from sandbox.verdict import Verdict

Progress = Callable[[str], None]
ENDED = "not run: the episode has ended"
NOT_RUN = "not run: the time is up"
CUT_OFF = "Your message was cut off; its tool calls were not run."
NEW_SHELL = "This session was interrupted. The shell is a new one; candidates and what is known of them are as before."
CLOSING = "No turn is left. The environment had the fastest candidate, {name}, judged: {answer}"
LAST_TURNS = 2
"""Turns in which a policy may submit what it has after the time is up."""
MAX_REASON = 2000
"""Characters of a reason that are kept."""
SIDE_BY_SIDE = tuple(spec.name for spec in COMPILING)
"""Tools whose neighbouring calls are run, and recorded, as one batch: they compile at the same time."""
MOST_SIDE_BY_SIDE = 8
"""Calls of a batch: in between the clock is looked at, and what was done is recorded."""
ONCE = ("shell",)
"""Tools whose calls may do twice what must be done once, so that one that was interrupted is not run again."""


class Writes(Protocol):
    """Where events go as they happen (see `trajectories.file.Recorder`)."""

    def write(self, entry: Any) -> None: ...


@dataclass(frozen=True)
class Budget:
    """Limits of one episode: seconds (see the clock of `run_episode`) and policy turns."""

    seconds: float
    turns: int = 200


@dataclass(frozen=True)
class EpisodeResult:
    """What an episode came to. ``best`` is a candidate that won, with its verdict; ``reason`` one line.

    reward: that of the best verdict, -1 without any, None where nothing is known of the policy's work.
    """

    best: tuple[Candidate, Verdict] | None
    reason: str
    trajectory: list[Message] = field(default_factory=list)
    turns: int = 0
    seconds: float = 0.0
    stop: Stop = "gave_up"
    reward: float | None = None


def run_episode(
    policy: Policy,
    tools: Toolbox,
    budget: Budget,
    progress: Progress = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    *,
    first: Sequence[Message] = (),
    record: Writes | None = None,
    past: Trajectory | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> EpisodeResult:
    """Let ``policy`` work with ``tools`` within ``budget``, of which only what ``clock`` counts is spent.

    What it has found by then may still be judged: a judgement is not cut short. Seconds in which a policy was asked in
    vain, as its server was away, are not counted, and those spent before a resume do not count either. An exception of
    the policy is its own bug and ends the episode with what was found so far; one of the tools is ours, and is raised
    once the record says so.
    first: what the conversation begins with; by default the task. record: where each event goes. past: an unfinished
    episode to go on with; ``tools`` must be new, and ``policy`` where it was (see `resume`). cancelled: asked before
    each step; what is under way is finished, and the record is left to be resumed.
    """
    episode = _Episode(policy, tools, budget, progress, clock, record, past)
    episode.begin(first or first_messages(tools))
    while (end := episode.step()) is None:
        if cancelled():
            return episode.result("interrupted", "told to stop")
    episode.note(end)
    return episode.result(end.stop, end.reason)


def reward_of(verdicts: Mapping[str, Verdict], stop: Stop, turns: int) -> float | None:
    """C7 for a whole episode: that of its best verdict.

    None where an infrastructure's failure, or a judge that could not say, hides what the policy is worth, and where it
    was never heard, unless that is its own fault.
    """
    known = [v.reward for v in verdicts.values() if v.reward is not None]
    if known:
        return max(known)
    unheard = turns == 0 and stop != "bug"
    unknown = unheard or stop in ("infrastructure", "interrupted")
    return None if verdicts or unknown else -1.0


class _Episode:
    def __init__(
        self,
        policy: Policy,
        tools: Toolbox,
        budget: Budget,
        progress: Progress,
        clock: Callable[[], float],
        record: Writes | None,
        past: Trajectory | None,
    ) -> None:
        self.policy, self.tools, self.budget = policy, tools, budget
        self.progress, self.clock, self.record = progress, clock, record
        self.messages: list[Message] = []
        self.turns = 0
        self.last: int | None = None
        self.open: Turn | None = None
        """A turn that has not been dealt with, and how many of its calls are answered."""
        self.answered = 0
        self.interrupted = self.new_shell = False
        self.known = Gains()
        self.recorded = 0
        """Bytes of the policy's files in the record."""
        self.started = clock()
        self.limit = budget.seconds
        if past is not None:
            self.go_on(past)
        tools.seconds_left = lambda: self.limit - self.used

    def begin(self, first: Sequence[Message]) -> None:
        """Say what has not been said of the first messages."""
        for message in first[len(self.messages) :]:
            self.note(Said(message, self.used))

    def go_on(self, past: Trajectory) -> None:
        """Be where the past ended."""
        for event in past.events:
            self.take(event)
        restore(self.tools, past.gains)
        self.known = gains_of(self.tools)
        self.started = self.clock() - past.used
        self.limit = past.used + self.budget.seconds
        self.interrupted = past.end is None and self.open is not None
        self.note(Resumed(time.time()))
        self.new_shell = any(_called(message, ONCE) for message in self.messages)

    def take(self, event: Event) -> None:
        """Follow one event: the only place where the conversation changes."""
        match event:
            case Said(message=message):
                self.messages.append(message)
                if message["content"] == OUT_OF_TIME:
                    self.last = self.turns + LAST_TURNS
                if message["content"] == CUT_OFF:
                    self.open = None
            case Acted(turn=turn):
                self.turns += 1
                self.messages.append(turn.to_message())
                self.open, self.answered = turn, 0
            case Answered(messages=messages, gains=gains):
                self.recorded += size_of(gains.files)
                self.messages += messages
                self.answered += len(messages)
                if self.open is not None and self.answered == len(self.open.calls):
                    self.open = None

    def note(self, event: Event) -> None:
        """Record an event, and follow it."""
        if self.record is not None:
            self.record.write(event)
        self.take(event)

    def say(self, text: str) -> None:
        self.note(Said({"role": "user", "content": text}, self.used))

    @property
    def used(self) -> float:
        return self.clock() - self.started

    @property
    def time_is_up(self) -> bool:
        return self.used > self.limit

    def step(self) -> Ended | None:
        """Do one thing; how the episode ended, if it did."""
        if self.tools.finished is not None and (self.open is None or not self.open.calls):
            stop: Stop = "gave_up" if self.tools.best() is None else "submitted"
            return self.end(stop, self.tools.finished)
        if self.open is not None:
            return self.deal_with(self.open)
        if self.new_shell:
            self.new_shell = False
            self.say(NEW_SHELL)
        if self.turns >= self.budget.turns:
            return self.close("turns", f"{self.budget.turns} turns are used up")
        out_of_time = f"{self.budget.seconds:.3g} s are used up"
        if self.last is None and self.time_is_up:
            if not self.tools.profiles:
                return self.end("time", out_of_time)
            self.say(OUT_OF_TIME)
        if self.turns == self.last:
            return self.end("time", out_of_time)
        return self.ask()

    def ask(self) -> Ended | None:
        before = self.used
        try:
            turn = self.policy.act(self.messages, self.tools.schemas)
        except Exception as error:
            return self.end("bug", f"the policy failed: {type(error).__name__}: {error}")
        if isinstance(turn, Stopped):
            if turn.kind == "infrastructure":
                self.started += self.used - before
                return self.end(turn.kind, turn.reason)
            return self.close(turn.kind, turn.reason)
        if not _well_formed(turn):
            return self.end("bug", f"the policy failed: it gave no turn but {turn!r}")
        used = self.used
        self.note(Acted(turn, used, used - before))
        return None

    def deal_with(self, turn: Turn) -> Ended | None:
        """Answer the next calls of a turn that the policy has taken."""
        if turn.truncated:
            self.say(CUT_OFF)
            return None
        if not turn.calls:
            return self.end("gave_up", turn.content or "the policy stopped without a tool call")
        over = self.tools.finished is not None
        if not over and self.last is not None and any(call.name != "submit" for call in turn.calls):
            return self.end("time", f"{self.budget.seconds:.3g} s are used up")
        left = turn.calls[self.answered :]
        before = self.used
        if over or self.is_late(turn):
            why = {"ok": False, "error": ENDED if over else NOT_RUN}
            answers = [tool_message(call, why) for call in left]
        else:
            answers = self.run(next_batch(left))
        self.bring(answers, before)
        self.progress(_last_line(answers))
        return None

    def bring(self, answers: Sequence[Message], before: float) -> None:
        """Record answers with what they brought since `before`."""
        gains = gains_of(self.tools)
        new, self.known = gains.since(self.known), gains
        if self.recorded + size_of(new.files) > MAX_RECORDED:
            log.once("search", LEFT_OUT)
            new = replace(new, files={})
        used = self.used
        self.note(Answered(tuple(answers), new, used, used - before))

    def judge_the_rest(self) -> None:
        """Have what is fastest, and was never judged, judged: its policy has no turn left in which to submit it."""
        promising = self.tools.promising().items()
        unjudged = [(s, n) for n, s in promising if n not in self.tools.verdicts]
        speed, name = max(unjudged, default=(0.0, ""))
        if speed < WORTH_SUBMITTING or self.tools.best() is not None:
            return
        before = self.used
        (answer,) = self.run([ToolCall.of("closing", "submit", candidate=name)])
        text = CLOSING.format(name=name, answer=answer["content"])
        self.bring([{"role": "user", "content": text}], before)

    def close(self, stop: Stop, reason: str) -> Ended | None:
        """End for want of turns or of what a policy needs; nothing where a candidate wins at the last moment."""
        self.judge_the_rest()
        return self.end(stop, reason) if self.tools.finished is None else None

    def is_late(self, turn: Turn) -> bool:
        """Whether the time is up for what is left of a turn. A turn that begins with a submission has that one."""
        first = self.answered == 0 and turn.calls[0].name == "submit"
        return not first and (self.last is not None or self.time_is_up)

    def run(self, batch: Sequence[ToolCall]) -> list[Message]:
        again, self.interrupted = self.interrupted, False
        if again and batch[0].name in ONCE:
            self.new_shell = False
            answer = {"ok": False, "error": f"interrupted, perhaps when half done. {NEW_SHELL}"}
            return [tool_message(batch[0], answer)]
        try:
            return self.tools.run(batch)
        except Exception as error:
            self.note(self.end("bug", f"a tool failed: {type(error).__name__}: {error}"))
            raise

    def end(self, stop: Stop, reason: str) -> Ended:
        best = self.tools.best()
        promoted = "" if best is None else best[0].digest[:12]
        reward = reward_of(self.tools.verdicts, stop, self.turns)
        return Ended(stop, reason[:MAX_REASON], self.turns, self.used, reward, promoted)

    def result(self, stop: Stop, reason: str) -> EpisodeResult:
        reward = reward_of(self.tools.verdicts, stop, self.turns)
        return EpisodeResult(
            self.tools.best(), reason, self.messages, self.turns, self.used, stop, reward
        )


def next_batch(calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """The first calls that are run and recorded as one: one call, or neighbours that compile side by side."""
    if calls[0].name not in SIDE_BY_SIDE:
        return calls[:1]
    others = (n for n, call in enumerate(calls) if call.name != calls[0].name)
    return calls[: min(next(others, len(calls)), MOST_SIDE_BY_SIDE)]


def _called(message: Message, names: Sequence[str]) -> bool:
    return any(c["function"]["name"] in names for c in message.get("tool_calls", ()))


def _well_formed(turn: object) -> bool:
    """Whether it can be recorded and read again: policies are not all ours."""
    return isinstance(turn, Turn) and all(
        isinstance(text, str)
        for text in (turn.content, *(t for c in turn.calls for t in (c.id, c.name, c.arguments)))
    )


def _last_line(messages: Sequence[Message]) -> str:
    content: dict[str, Any] = json.loads(messages[-1]["content"])
    return str(
        content.get("reason")
        or content.get("error")
        or content.get("sketch")
        or messages[-1]["name"]
    )
