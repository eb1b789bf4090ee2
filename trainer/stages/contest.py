"""The trained policy among the arena's rivals, on tables of families that nobody was trained on.

A rival asks for rows of a table; the policy speaks. Here it plays its episode with the tools of the replay environment,
and each of its judgements is a row that it asks for: again where it asks again, and `NO_ROW` where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cuda_agent_backend.agent.policies.trained.allowance import TURNS
from cuda_agent_backend.agent.protocol import Policy, Stopped, ToolCall
from cuda_agent_backend.codegen.ir.schedule import Schedule
from trainer.arena.figures import Game, figures
from trainer.arena.play import BUDGETS, Played, noise_of, play
from trainer.rivals.protocol import NO_ROW, Play, View
from trainer.rivals.registry import CONTROLS, RIVALS
from trainer.rollout.chat import Speaker, policy_of
from trainer.rollout.world import Counted
from trainer.world.neighbours import TableMemory
from trainer.world.replay_tools import ReplayTools
from trainer.world.rows import Table

NAME = "trained"


class TrainedRival:
    """The policy as a rival that was trained already. budget: judgements that it is told of. memory: of the tables that
    it was trained on, of which `look` tells."""

    name = NAME

    def __init__(
        self,
        sampler: Speaker,
        tables: Sequence[Table],
        budget: int,
        memory: TableMemory | None = None,
    ) -> None:
        self._sampler, self._budget = sampler, budget
        self._memory = memory or TableMemory(())
        self._tables = {_names(table): table for table in tables}

    def fit(self, tables: Sequence[Table], seed: int) -> None:
        """Its stages have done that."""

    def play(self, view: View, seed: int) -> Play:
        """See `Rival`. seed: of the policy's draws, and of what its tools answer."""
        table = self._tables[view.names]
        near = self._memory.neighbours(table)
        tools = Counted(ReplayTools.of(table, noise_of(table, seed), near), self._budget)
        session = self._sampler.session()
        policy = policy_of(
            self._sampler, lambda request: session.generate([request])[0], 0, f"arena/{seed}"
        )
        for call in _judgements(policy, tools, self._budget):
            row = _row(call, view)
            yield NO_ROW if row is None else row


def _judgements(policy: Policy, tools: Counted, budget: int) -> Iterator[ToolCall]:
    """The calls of an episode that were judgements, each after it was answered, until it has ended or has had as many
    as it may: what is asked for again, or cannot be judged, costs as much as in training."""
    messages = tools.first()
    for _ in range(TURNS):
        turn = policy.act(messages, tools.schemas)
        if isinstance(turn, Stopped) or not turn.calls:
            return
        messages.append(turn.to_message())
        for call in turn.calls:
            before = tools.judgements
            messages += tools.run([call])
            if tools.judgements > before:
                yield call
            if tools.finished is not None or tools.judgements >= budget:
                return


def _row(call: ToolCall, view: View) -> int | None:
    """The row that a judgement was of: of a candidate, or of a schedule that gave none. A verification has none: it
    times nothing, so it draws none of the noise that all rivals hear alike."""
    try:
        given = json.loads(call.arguments or "{}")
        if call.name == "sketch":
            return view.rows.get(Schedule.from_json(json.dumps(given["schedule"])))
    except (ValueError, KeyError, TypeError):  # what a model wrote need not be a call
        return None
    known = isinstance(given, dict) and given.get("candidate") in view.names
    if known and call.name in ("profile", "submit"):
        return view.names.index(given["candidate"])
    return None


def contest(
    sampler: Speaker,
    train: Sequence[Table],
    test: Sequence[Table],
    rivals: Sequence[str],
    seeds: int,
) -> Mapping[str, Any]:
    """The arena's figures of the policy and of rivals that learn from the same tables, by name."""
    games = {NAME: games_of([sampler], test, seeds, memory=TableMemory(train))}
    for name in rivals:
        for seed in range(seeds):
            rival = (RIVALS | CONTROLS)[name]()
            rival.fit(train, seed)
            games.setdefault(name, []).extend(
                Game(table.id, table.family, seed, play(rival, table, seed)) for table in test
            )
    return {name: figures(own) for name, own in games.items()}


def games_of(
    samplers: Sequence[Speaker],
    tables: Sequence[Table],
    seeds: int,
    tell: Callable[[int], None] = lambda _: None,
    memory: TableMemory | None = None,
) -> list[Game]:
    """The policy's games. samplers: of equal trainings with different seeds, which take turns; of one alone, seeds say
    what tools answer, and nothing of how trainings scatter. tell: is told how many games are done. memory: of the
    tables to train on."""
    games: list[Game] = []
    for seed in range(seeds):
        sampler = samplers[seed % len(samplers)]
        for table in tables:
            played = _at_each_budget(sampler, table, seed, memory)
            games.append(Game(table.id, table.family, seed, played))
            tell(len(games))
    return games


def _at_each_budget(
    sampler: Speaker, table: Table, seed: int, memory: TableMemory | None
) -> Played:
    """An episode for each budget, as the policy is told which one it has; the largest says how it goes on."""
    rivals = {b: TrainedRival(sampler, [table], b, memory) for b in BUDGETS}
    found = {b: play(rival, table, seed, b) for b, rival in rivals.items()}
    return replace(found[BUDGETS[-1]], at={budget: one.at[budget] for budget, one in found.items()})


def _names(table: Table) -> tuple[str, ...]:
    return tuple(row.candidate for row in table.rows)
