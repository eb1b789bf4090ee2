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
from cuda_agent_backend.agent.conversation import Conversation
from cuda_agent_backend.agent.environment import first_messages
from cuda_agent_backend.agent.gains import Gains, gains_of, restore
from cuda_agent_backend.agent.protocol import (
    CUT_OFF,
    OUT_OF_TIME,
    Message,
    Policy,
    Stopped,
    ToolCall,
    Turn,
    tool_message,
)
from cuda_agent_backend.agent.tools.kernel_specs import COMPILING
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.agent.tools.workbench import WORTH_SUBMITTING
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
NEW_SHELL = "This session was interrupted. The shell is a new one; candidates and what is known of them are as before."
CLOSING = "No turn is left. The environment had the fastest candidate, {name}, judged: {answer}"
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
    episode = Episode(policy, tools, budget, progress, clock, record, past)
    episode.say_first(first or first_messages(tools))
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


class Episode:
    """One episode: does one step after another, and records each before the next. `run_episode` does them all."""

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
        self.conversation = Conversation()
        self.interrupted = self.new_shell = False
        self.known = Gains()
        self.started = clock()
        self.limit = budget.seconds
        if past is not None:
            self.go_on(past)
        tools.seconds_left = lambda: self.limit - self.used

    def say_first(self, first: Sequence[Message]) -> None:
        """Say what has not been said of the first messages."""
        for message in first[len(self.conversation.messages) :]:
            self.note(Said(message, self.used))

    def go_on(self, past: Trajectory) -> None:
        """Be where the past ended."""
        for event in past.events:
            self.conversation.follow(event)
        restore(self.tools, past.gains)
        self.known = gains_of(self.tools)
        self.started = self.clock() - past.used
        self.limit = past.used + self.budget.seconds
        self.interrupted = past.end is None and self.conversation.open is not None
        self.note(Resumed(time.time()))
        self.new_shell = self.conversation.has_called(ONCE)

    def note(self, event: Event) -> None:
        """Record an event, and follow it."""
        if self.record is not None:
            self.record.write(event)
        self.conversation.follow(event)

    def say(self, text: str) -> None:
        """Tell the policy something, as a user's message."""
        self.note(Said({"role": "user", "content": text}, self.used))

    @property
    def used(self) -> float:
        """Seconds of the budget, those before a resume among them."""
        return self.clock() - self.started

    @property
    def time_is_up(self) -> bool:
        """Whether the budget is spent."""
        return self.used > self.limit

    def step(self) -> Ended | None:
        """Do one thing; how the episode ended, if it did."""
        conversation = self.conversation
        if self.tools.finished is not None and (
            conversation.open is None or not conversation.open.calls
        ):
            stop: Stop = "gave_up" if self.tools.best() is None else "submitted"
            return self.end(stop, self.tools.finished)
        if conversation.open is not None:
            return self.answer_calls(conversation.open)
        if self.new_shell:
            self.new_shell = False
            self.say(NEW_SHELL)
        if conversation.turns >= self.budget.turns:
            return self.close("turns", f"{self.budget.turns} turns are used up")
        out_of_time = f"{self.budget.seconds:.3g} s are used up"
        if conversation.last_turn is None and self.time_is_up:
            if not self.tools.profiles:
                return self.end("time", out_of_time)
            self.say(OUT_OF_TIME)
        if conversation.turns == conversation.last_turn:
            return self.end("time", out_of_time)
        return self.ask()

    def ask(self) -> Ended | None:
        """Let the policy take its next turn."""
        before = self.used
        try:
            turn = self.policy.act(self.conversation.messages, self.tools.schemas)
        except Exception as error:
            return self.end("bug", f"the policy failed: {type(error).__name__}: {error}")
        return self.take(turn, before)

    def take(self, turn: Turn | Stopped, before: float) -> Ended | None:
        """Take in what a policy said that was asked when so much of the budget was used; how the episode ended, if it
        did."""
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

    def answer_calls(self, turn: Turn) -> Ended | None:
        """Answer the next calls of a turn that the policy has taken."""
        if turn.truncated:
            self.say(CUT_OFF)
            return None
        if not turn.calls:
            return self.end("gave_up", turn.content or "the policy stopped without a tool call")
        over = self.tools.finished is not None
        if (
            not over
            and self.conversation.last_turn is not None
            and any(call.name != "submit" for call in turn.calls)
        ):
            return self.end("time", f"{self.budget.seconds:.3g} s are used up")
        left, before = self.conversation.unanswered, self.used
        if over or self.is_late(turn):
            why = {"ok": False, "error": ENDED if over else NOT_RUN}
            answers = [tool_message(call, why) for call in left]
        else:
            answers = self.run(next_batch(left))
        self.record_answers(answers, before)
        self.progress(_last_line(answers))
        return None

    def record_answers(self, answers: Sequence[Message], before: float) -> None:
        """Record answers with what they brought since `before`."""
        gains = gains_of(self.tools)
        new, self.known = gains.since(self.known), gains
        if self.conversation.recorded_bytes + size_of(new.files) > MAX_RECORDED:
            log.once("search", LEFT_OUT)
            new = replace(new, files={})
        used = self.used
        self.note(Answered(tuple(answers), new, used, used - before))

    def submit_fastest(self) -> None:
        """Have what is fastest, and was never judged, judged: its policy has no turn left in which to submit it."""
        promising = self.tools.promising().items()
        unjudged = [(s, n) for n, s in promising if n not in self.tools.verdicts]
        speed, name = max(unjudged, default=(0.0, ""))
        if speed < WORTH_SUBMITTING or self.tools.best() is not None:
            return
        before = self.used
        (answer,) = self.run([ToolCall.of("closing", "submit", candidate=name)])
        text = CLOSING.format(name=name, answer=answer["content"])
        self.record_answers([{"role": "user", "content": text}], before)

    def close(self, stop: Stop, reason: str) -> Ended | None:
        """End for want of turns or of what a policy needs; nothing where a candidate wins at the last moment."""
        self.submit_fastest()
        return self.end(stop, reason) if self.tools.finished is None else None

    def is_late(self, turn: Turn) -> bool:
        """Whether the time is up for what is left of a turn. A turn that begins with a submission has that one."""
        first = self.conversation.answered == 0 and turn.calls[0].name == "submit"
        return not first and (self.conversation.last_turn is not None or self.time_is_up)

    def run(self, batch: Sequence[ToolCall]) -> list[Message]:
        """Run calls. The first of them after a resume may have been run before: what must not be twice, is not."""
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
        """The event that ends the episode, with what it is worth."""
        best = self.tools.best()
        promoted = "" if best is None else best[0].digest[:12]
        reward = reward_of(self.tools.verdicts, stop, self.conversation.turns)
        return Ended(
            stop, reason[:MAX_REASON], self.conversation.turns, self.used, reward, promoted
        )

    def result(self, stop: Stop, reason: str) -> EpisodeResult:
        """What the episode came to so far."""
        reward = reward_of(self.tools.verdicts, stop, self.conversation.turns)
        return EpisodeResult(
            best=self.tools.best(),
            reason=reason,
            trajectory=self.conversation.messages,
            turns=self.conversation.turns,
            seconds=self.used,
            stop=stop,
            reward=reward,
        )


def next_batch(calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """The first calls that are run and recorded as one: one call, or neighbours that compile side by side."""
    if calls[0].name not in SIDE_BY_SIDE:
        return calls[:1]
    others = (n for n, call in enumerate(calls) if call.name != calls[0].name)
    return calls[: min(next(others, len(calls)), MOST_SIDE_BY_SIDE)]


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
