"""Rolling out: a model plays tasks, and each episode comes back with the ids that it saw and said, and its reward."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cuda_agent_backend.agent.loop import Budget, EpisodeResult, run_episode
from cuda_agent_backend.agent.policies.trained.allowance import TURNS
from cuda_agent_backend.agent.policies.trained.speech import Speech
from cuda_agent_backend.agent.protocol import (
    Message,
    Policy,
    Schema,
    Stopped,
    Tokens,
    ToolCall,
    Turn,
)
from sandbox.verdict import Verdict
from trainer.ppo.episode import ENDS, Episode, Sample, samples_of
from trainer.rollout.chat import Speaker, policy_of
from trainer.rollout.lockstep import Lockstep
from trainer.rollout.world import Counted, World, WorldFailed

Reward = Literal["outcome", "graded", "speedup"]
"""outcome: C7, of the verdict that promotes. graded: for what is correct one less than C7 and the share of the best
speed-up that is known of the task, where tools know it (a table's do). C7 alone says nothing of how much faster one is
than another: a policy that learns from it submits the first winner, and learns nothing where there is none. speedup:
the raw speed-up, for the ablation."""


@dataclass(frozen=True)
class Plan:
    """One episode that is wanted. seed: of its draws and of the world's noise. judgements: its budget."""

    task: str
    seed: str
    judgements: int


@dataclass(frozen=True)
class Play:
    """How episodes are played. turns: at most. single: one answer a task, which is judged as it is."""

    turns: int = TURNS
    single: bool = False
    reward: Reward = "outcome"


@dataclass(frozen=True)
class Played:
    """An episode, its conversation, and the best speed-up that a verdict proved (0: none). reason: why it ended.
    seconds: of its tools, see `Counted`. best_known: the best speed-up that tools know of the task (0: none)."""

    episode: Episode
    messages: tuple[Message, ...]
    speed: float = 0.0
    reason: str = ""
    seconds: float = 0.0
    best_known: float = 0.0


@dataclass(frozen=True)
class Watch:
    """Who looks on. told: of each episode as it ends, in its thread. go_on: whether another may begin."""

    told: Callable[[Plan, Played], None] = lambda plan, played: None
    go_on: Callable[[], bool] = lambda: True


NOBODY = Watch()


def roll_out(
    plans: Sequence[Plan], world: World, sampler: Speaker, play: Play, watch: Watch = NOBODY
) -> list[Played]:
    """Play episodes, as many at once as the world takes; those that were begun, in the order of the plans."""
    found: list[Played] = []
    for start in range(0, len(plans), world.side_by_side):
        if not watch.go_on():
            break
        some = plans[start : start + world.side_by_side]
        found += _together(some, world, sampler, play, watch)
    return found


def _together(
    plans: Sequence[Plan], world: World, sampler: Speaker, play: Play, watch: Watch
) -> list[Played]:
    session = sampler.session()
    lockstep = Lockstep(session.generate, range(len(plans)))
    found: dict[int, Played] = {}

    def one(key: int) -> None:
        plan = plans[key]
        try:
            policy = policy_of(sampler, lockstep.ask, key, plan.seed)
            found[key] = played(policy, plan, world, play, sampler.speech)
            watch.told(plan, found[key])
        finally:
            lockstep.leave(key)

    _in_threads(len(plans), one)
    return [found[key] for key in range(len(plans))]


def play_each(
    plans: Sequence[Plan],
    world: World,
    make: Callable[[Plan], Policy],
    play: Play,
    watch: Watch,
    jobs: int,
) -> None:
    """Play episodes of policies that share no model, ``jobs`` at once. Who looks on is told of each."""
    waiting, guard, failed = iter(plans), threading.Lock(), threading.Event()

    def another() -> Plan | None:
        with guard:
            return next(waiting, None) if watch.go_on() and not failed.is_set() else None

    def work(number: int) -> None:
        try:
            while (plan := another()) is not None:
                watch.told(plan, played(make(plan), plan, world, play))
        except BaseException:
            failed.set()
            raise

    _in_threads(min(jobs, len(plans)), work)


def _in_threads(count: int, work: Callable[[int], None]) -> None:
    """Do work of each number at once. What a thread raises, a bug or a full disk, is raised here in the end."""
    faults: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def played(
    policy: Policy, plan: Plan, world: World, play: Play, speech: Speech | None = None
) -> Played:
    """One episode of any policy that records its tokens. One whose environment dies is marked as infrastructure's.

    speech: whose grammar says what each id was drawn from; None where that is the whole vocabulary."""
    heard = _Recorded(policy)
    try:
        chance = random.Random(f"world/{plan.seed}")
        tools = Counted(world.tools(plan.task, chance.randrange(1 << 30)), plan.judgements)
        result = _single(heard, tools) if play.single else _many(heard, tools, plan, play)
    except (WorldFailed, OSError) as error:
        return Played(
            Episode((), None, "infrastructure", plan.task, notes={"failed": 1.0}),
            ({"role": "user", "content": str(error)},),
            reason=str(error),
        )
    return played_of(result, heard.tokens, plan, tools, play, speech)


def _many(policy: Policy, tools: Any, plan: Plan, play: Play) -> EpisodeResult:
    """An episode whose time is counted in judgements."""
    budget = Budget(plan.judgements - 0.5, play.turns)
    first = tools.first()
    return run_episode(policy, tools, budget, clock=lambda: float(tools.judgements), first=first)


def _single(policy: Policy, tools: Any) -> EpisodeResult:
    """The task has been looked at; the policy says one thing, and the first candidate in it is judged."""
    messages = tools.first()
    look = Turn("", (ToolCall.of("call_1", "look"),))
    messages += [look.to_message(), *tools.run(look.calls)]
    turn = policy.act(messages, tools.schemas)
    if isinstance(turn, Stopped):
        return EpisodeResult(None, turn.reason, messages, 0, stop=turn.kind)
    messages.append(turn.to_message())
    if not turn.truncated:
        messages += tools.run(turn.calls)
    for name in list(tools.candidates)[:1]:
        judged = ToolCall.of("judged", "submit", candidate=name)
        messages += tools.run([judged])
    known = [v.reward for v in tools.verdicts.values() if v.reward is not None]
    reward = max(known) if known else (None if tools.verdicts else -1.0)
    return EpisodeResult(tools.best(), "one answer", messages, 1, stop="submitted", reward=reward)


def played_of(
    result: EpisodeResult,
    tokens: Sequence[Tokens],
    plan: Plan,
    tools: Any,
    play: Play,
    speech: Speech | None,
) -> Played:
    """What an episode came to, as the trainer has it."""
    samples = tuple(with_choices(speech, *made) for made in samples_of(tokens))
    speed = best_speed(result.best, tools.verdicts)
    known = getattr(tools, "best_known", 0.0)
    reward = rewarded(play.reward, result.reward, speed, known)
    calls = sum(len(m.get("tool_calls", ())) for m in result.trajectory)
    notes = {
        "judgements": float(tools.judgements),
        "invalid": tools.failures / max(1, calls),
        "cut_off": float(ENDS[result.stop] == "context"),
        "won": float(result.best is not None),
    }
    episode = Episode(samples, reward, ENDS[result.stop], plan.task, result.turns, notes)
    reason = result.reason if result.reward is not None else _why_unknown(result, tools.verdicts)
    return Played(episode, tuple(result.trajectory), speed, reason, tools.seconds, known)


def _why_unknown(result: EpisodeResult, verdicts: Any) -> str:
    """Why an episode has no reward: what a verdict says, as of a busy machine, or why it ended if there is none."""
    said = [v.reason for v in verdicts.values() if v.reward is None]
    return f"no verdict: {said[-1]}" if said else result.reason


def rewarded(kind: Reward, outcome: float | None, speed: float, best: float) -> float | None:
    """An episode's reward. outcome: C7. speed, best: the best speed-up that it proved, and that is known; 0: none."""
    if outcome is None or kind == "outcome":
        return outcome
    if kind == "speedup":
        return speed if speed > 0 else -1.0
    return outcome - 1.0 + min(1.0, speed / best) if outcome > 0 and best > 0 else outcome


def best_speed(best: tuple[Any, Verdict] | None, verdicts: Mapping[str, Verdict]) -> float:
    """The median speed-up of what is promoted; the largest of a correct candidate where nothing is.

    best: the winner with its verdict. What did not win is not used, however large its median is.
    """
    if best is not None and best[1].speed is not None:
        return float(best[1].speed.speedup.median)
    speeds = [
        float(v.speed.speedup.median)
        for v in verdicts.values()
        if v.speed is not None and v.reward is not None and v.reward > 0
    ]
    return max(speeds, default=0.0)


def with_choices(
    speech: Speech | None, ids: Sequence[int], spoken: Sequence[bool], logprobs: Sequence[float]
) -> Sample:
    """A sample with what each id was drawn from, which follows from the ids before it where there is a grammar."""
    if speech is None:
        return Sample(tuple(ids), tuple(spoken), tuple(logprobs))
    grammar, allowed = speech.grammar(), []
    for id, chosen in zip(ids, spoken, strict=True):
        if chosen:
            allowed.append(grammar.allowed())
        grammar.feed((id,))
    return Sample(tuple(ids), tuple(spoken), tuple(logprobs), tuple(allowed))


class _Recorded:
    """A policy whose tokens are kept."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.name = policy, policy.name
        self.tokens: list[Tokens] = []

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        """See `Policy`."""
        turn = self._policy.act(messages, tools)
        if isinstance(turn, Turn) and turn.tokens is not None:
            self.tokens.append(turn.tokens)
            return replace(turn, tokens=None)
        return turn
