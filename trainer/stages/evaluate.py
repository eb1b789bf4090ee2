"""The stage ``eval``: the policy on tasks that it was not trained on, at each budget, beside today's searches.

Each episode is kept as it ends (see `episode_book`), and what is kept is not played again. Settings may change until
the evaluation is done; then what was played by others stays in the book and counts for nothing. A task is played by
all, at all budgets, before the next one: the judge compiles a task's baseline anew whenever it comes back to it.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from cuda_agent_backend.agent.policies.search.factory import make
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.policies.spec import PolicySpec
from trainer.ppo.episode import Episode
from trainer.ppo.ranks import share
from trainer.rollout.chat import NAME
from trainer.rollout.episodes import Plan, Play, Played, Watch, play_each, roll_out
from trainer.rollout.table_world import TableWorld
from trainer.rollout.world import family_in
from trainer.stages.config import BadConfig, Config, StageSettings
from trainer.stages.contest import contest
from trainer.stages.episode_book import EpisodeBook, Key, Line, sorted_out
from trainer.stages.scores import scores
from trainer.stages.steps import Stage
from trainer.world.sources import part_of

SHOWN = {"order": ("search", "search (order)"), "bayesian": ("bayesian", "bayesian")}
"""For each of `config.SEARCHES` the policy that it is where it is served, and its name in figures."""
SEARCH_TURNS = 200
"""Of a search at most, as where it is served: its budget is in judgements alone."""
REASON = 300
"""Characters of a reason that are kept."""


@dataclass(frozen=True)
class Asked:
    """How an evaluation is asked for. policy: a folder with weights, instead of what the stages before it made. part:
    of the tasks, the K-th of N. limit_s: seconds after which no further episode is begun."""

    policy: Path | None = None
    part: tuple[int, int] = (1, 1)
    limit_s: float = math.inf


@dataclass(frozen=True)
class Evaluated:
    """What is known so far. left: episodes that are still to be played; failed: those of them that were lost before."""

    figures: Mapping[str, Any]
    left: int
    failed: int


@dataclass(frozen=True)
class Evaluation:
    """What is played. weights: names those of the policy. until: by `time.monotonic`, no episode begins after it."""

    stage: Stage
    book: EpisodeBook
    weights: str = ""
    part: tuple[int, int] = (1, 1)
    until: float = math.inf
    tell: Callable[[str], None] = print

    def go_on(self) -> bool:
        """Whether another episode may begin."""
        return time.monotonic() < self.until

    @property
    def policies(self) -> tuple[str, ...]:
        """By their names in figures."""
        return tuple(self.how)

    @cached_property
    def how(self) -> Mapping[str, str]:
        """See `hows_of`."""
        return hows_of(self.stage.config)

    def lines(self) -> list[Line]:
        """Those that were played as is wanted now. Raises `BadBook`."""
        every = self.book.lines(self.weights)
        return [line for line in every if line.how in ("", self.how.get(line.policy))]

    @cached_property
    def plans(self) -> Sequence[Plan]:
        """Of the part, each task at every budget before the next one. A task's seeds are the same in any part."""
        stage = self.stage
        numbered = part_of(list(enumerate(stage.world.test_tasks)), *self.part)
        seed = f"{stage.config.seed}/eval"
        return [
            Plan(task, f"{seed}/{budget}/{number}", budget)
            for number, task in numbered
            for budget in stage.settings.judgements
        ]

    def batches(self) -> Iterator[Sequence[Plan]]:
        """About as many plans as all processes play at once, with whole tasks."""
        stage, budgets = self.stage, len(self.stage.settings.judgements)
        size = budgets * max(1, stage.ranks.world * stage.world.side_by_side // budgets)
        for start in range(0, len(self.plans), size):
            yield self.plans[start : start + size]


def evaluate(wanted: Evaluation) -> Evaluated:
    """Play what is left, and say what all comes to: figures by budget and policy (see `scores`). On tables also the
    arena's figures once all was played, beside rivals that learnt from the same ones, unless ``seeds`` is 0.

    Raises `BadConfig` where there is nothing to play, `BadBook`, and `WorldFailed` where the world cannot be opened.
    """
    stage = wanted.stage
    _check(stage)
    counted, _ = sorted_out(wanted.lines())
    stage.ranks.everyones(None)  # nobody writes before all have read
    for plans in wanted.batches():
        for name in wanted.policies:
            left = [plan for plan in plans if _key(name, plan) not in counted]
            if left and wanted.go_on():
                _open(stage.world)
                _play(wanted, name, share(left, stage.ranks))
    stage.ranks.everyones(None)  # all have written
    found = _evaluated(wanted) if stage.ranks.rank == 0 else None
    everyones: Evaluated = stage.ranks.everyones(found)[0]
    return everyones


def _check(stage: Stage) -> None:
    world = stage.world
    if not world.test_tasks:
        raise BadConfig(
            "eval: the world holds no task out; give [world], or [eval.world], a held_out above 0"
        )
    if stage.settings.seeds and isinstance(world, TableWorld) and not world.tasks:
        raise BadConfig(
            "eval: all tables are held out, and the arena's rivals have none to learn from; give [eval] seeds = 0, or "
            "a held_out below 1"
        )


def _open(world: Any) -> None:
    """Have a world that starts with its first episode say now why it cannot."""
    getattr(world, "open", lambda: None)()


def _play(wanted: Evaluation, name: str, plans: Sequence[Plan]) -> None:
    """Play one policy's episodes, and keep each as it ends."""
    stage, lines = wanted.stage, list[Line]()

    def told(plan: Plan, one: Played) -> None:
        family = family_in(stage.world, plan.task)
        weights = wanted.weights if name == NAME else ""
        lines.append(line_of(name, plan, one, family, weights, wanted.how[name]))
        wanted.book.add(lines[-1])

    watch = Watch(told, wanted.go_on)
    play = _play_of(name, stage.settings)
    if name == NAME:
        roll_out(plans, stage.world, _speaker(stage), play, watch)
    else:
        # Tables answer at once: threads would only wait for each other.
        jobs = 1 if isinstance(stage.world, TableWorld) else stage.world.side_by_side
        play_each(plans, stage.world, partial(search_of, name), play, watch, jobs)
    _tell(wanted, name, lines)


def _play_of(name: str, settings: StageSettings) -> Play:
    turns = settings.turns if name == NAME else max(settings.turns, SEARCH_TURNS)
    return Play(turns, settings.single)


def hows_of(config: Config) -> dict[str, str]:
    """By policy, under their names in figures, how it plays (see `how_of`)."""
    names = (NAME, *(SHOWN[name][1] for name in config.eval.against))
    return {name: how_of(name, config) for name in names}


def how_of(name: str, config: Config) -> str:
    """Names all settings that a policy's episodes are played by, its budget aside: 16 hex digits. What says only which
    are played, and beside what, is not among them; nor are the world's paths, as tasks are named by what they are."""
    world, play = config.eval.world or config.world, _play_of(name, config.eval)
    given: list[Any] = [config.seed, play.turns, play.single]
    given += [world.kind, world.factory, world.device, world.held_out, world.held_out_part]
    if name == NAME:
        given.append(config.eval.temperature)
    return hashlib.sha256(json.dumps(given).encode()).hexdigest()[:16]


def _tell(wanted: Evaluation, name: str, lines: Sequence[Line]) -> None:
    lost = [line for line in lines if not line.counts]
    why = f", {len(lost)} of them lost, as {lost[0].task}: {lost[0].reason}" if lost else ""
    if lines:
        wanted.tell(f"eval: {name}: {len(lines)} episodes{why}")


def _speaker(stage: Stage) -> Any:
    return stage.learner.kind.speaker(stage.learner.actor, stage.settings.temperature)


def search_of(name: str, plan: Plan) -> SearchPolicy:
    """A search as it is served, but for its budget. name: in figures."""
    served = {shown: policy for policy, shown in SHOWN.values()}[name]
    return replace(make(PolicySpec(served)), judgements=plan.judgements)


def line_of(name: str, plan: Plan, one: Played, family: str, weights: str, how: str) -> Line:
    """What is kept of an episode."""
    episode = one.episode
    return Line(
        policy=name,
        budget=plan.judgements,
        task=plan.task,
        family=family,
        won=bool(episode.notes.get("won", 0.0)),
        speed=one.speed,
        reward=episode.reward,
        judgements=episode.notes.get("judgements", 0.0),
        seconds=one.seconds,
        end=episode.end,
        reason=one.reason[:REASON],
        counts=counts(episode),
        weights=weights,
        how=how,
    )


def counts(episode: Episode) -> bool:
    """Whether it says anything of the policy. A task that does not fit the policy's window does: it is not solved."""
    unread = episode.end == "context" and not episode.turns
    return episode.end != "infrastructure" and (episode.reward is not None or unread)


def _key(name: str, plan: Plan) -> Key:
    return name, plan.judgements, plan.task


def _evaluated(wanted: Evaluation) -> Evaluated:
    counted, lost = sorted_out(wanted.lines())
    figures: dict[str, Any] = {}
    left = failed = 0
    for budget in wanted.stage.settings.judgements:
        of_budget = [plan for plan in wanted.plans if plan.judgements == budget]
        for name in wanted.policies:
            keys = [_key(name, plan) for plan in of_budget]
            lines, missed = [counted[k] for k in keys if k in counted], len(lost.intersection(keys))
            figures.setdefault(str(budget), {})[name] = scores(lines, missed)
            left, failed = left + len(keys) - len(lines), failed + missed
    if not left and wanted.part[1] == 1 and (found := _arena(wanted.stage)):
        figures["arena"] = found
    return Evaluated(figures, left, failed)


def _arena(stage: Stage) -> Mapping[str, Any]:
    settings, world = stage.settings, stage.world
    if not settings.seeds or not isinstance(world, TableWorld):
        return {}
    train, test = world.tables(world.tasks), world.tables(world.test_tasks)
    return contest(_speaker(stage), train, test, settings.rivals, settings.seeds)
