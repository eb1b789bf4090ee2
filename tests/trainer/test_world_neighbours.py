"""Tables tell of neighbours as a search with a cache does: winners of other families, of tables to train on alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from world_kit import made, measured

from cuda_agent_backend.agent.memory.recall import MOST, Memory
from cuda_agent_backend.agent.policies.trained.speech import Listener, Speech
from cuda_agent_backend.agent.protocol import ToolCall
from cuda_agent_backend.codegen.ir.schedule import Schedule
from kernel_cache import KernelCache
from trainer.arena.play import BUDGETS
from trainer.rivals.protocol import view_of
from trainer.rollout.held_out import HeldOut
from trainer.rollout.table_world import TableWorld
from trainer.stages import contest
from trainer.world.neighbours import TableMemory, key_of, winner
from trainer.world.replay_tools import ReplayTools
from trainer.world.rows import Table

SPEECH = Speech()
VARIANCE = next(t for t in measured() if t.family == "var_mean")
MEAN = next(t for t in measured() if t.family == "mean+var+var_mean" and winner(t))


def looked(tools: Any) -> list[dict[str, Any]]:
    (answer,) = tools.run([ToolCall.of("1", "look")])
    found: list[dict[str, Any]] = json.loads(answer["content"])["neighbours"]
    return found


def test_the_neighbours_of_a_table_are_those_that_a_cache_of_the_winners_recalls(
    tmp_path: Path,
) -> None:
    memory, told = TableMemory(measured()), 0
    for number, table in enumerate(measured()):
        cache = KernelCache.open(tmp_path / str(number) / "kernels")
        assert isinstance(cache, KernelCache)
        for other in measured():
            record = winner(other)
            if record is not None and other.family != table.family:
                cache.put(record, b"")
        recalled = Memory(cache).neighbours(table.parsed, key_of(table))
        cache.close()
        assert list(memory.neighbours(table)) == recalled and len(recalled) <= MOST
        told += len(recalled)
    assert told > 3


def test_a_winner_is_the_fastest_that_the_judge_promotes_with_its_speed_up() -> None:
    found = {table.id: winner(table) for table in measured()}
    assert 3 < sum(record is not None for record in found.values()) < len(found)
    for table in measured():
        record = found[table.id]
        if record is None:
            continue
        (row,) = [row for row in table.rows if record.label in row.schedules]
        assert record.evidence["speedup"]["median"] == row.speed  # type: ignore[index,call-overload]
    schedules = [Schedule.of({"sketch": "row", "team": team}) for team in (32, 64, 128)]
    speeds = dict(zip(schedules, (1.5, 1.04, None), strict=True))
    table = made(schedules, lambda schedule: speeds[schedule])
    record = winner(table)
    assert record is not None and record.label == schedules[0].to_json()
    assert winner(replace(table, rows=table.rows[1:])) is None


def test_held_out_families_and_a_tasks_own_family_are_never_told() -> None:
    memory = TableMemory([VARIANCE, MEAN])
    (near,) = memory.neighbours(VARIANCE)
    assert near.record.key == key_of(MEAN)
    assert list(TableMemory([VARIANCE]).neighbours(VARIANCE)) == []
    for share in (0.2, 0.4, 0.6):
        world = TableWorld(measured(), HeldOut(share), 4)
        train = {t.parsed.digest: t.family for t in world.tables(world.tasks)}
        for task in (*world.tasks, *world.test_tasks):
            (table,) = world.tables([task])
            for n in world.tools(task, 0).neighbours:
                assert train[n.task.digest] != table.family


@pytest.mark.parametrize(
    "change", [{"arch": "sm_90a"}, {"flags": "{}"}, {"target": "cuda"}], ids=lambda c: next(iter(c))
)
def test_tables_of_other_machines_and_flags_are_no_neighbours(change: dict[str, str]) -> None:
    assert TableMemory([MEAN]).neighbours(VARIANCE)
    assert not TableMemory([MEAN]).neighbours(replace(VARIANCE, id="other", **change))  # type: ignore[arg-type]


def test_of_tables_of_one_task_the_fastest_winner_is_told() -> None:
    slower = replace(
        MEAN,
        id="slower",
        rows=tuple(replace(r, retimed=tuple(1.1 * s for s in r.retimed)) for r in MEAN.rows),
    )
    for tables in ([MEAN, slower], [slower, MEAN]):
        (near,) = TableMemory(tables).neighbours(VARIANCE)
        assert near.speedup == MEAN.best


def test_look_tells_of_them_in_words_that_the_policy_reads() -> None:
    world = TableWorld(measured(), HeldOut(0.1), 4)
    said = []
    for task in world.tasks:
        tools = world.tools(task, 3)
        told = looked(tools)
        assert told == looked(world.tools(task, 4))
        listener = Listener(SPEECH)
        listener.hear(tools.run([ToolCall.of("1", "look")]))
        words = [SPEECH.words.words[id] for id in listener.ids]
        assert words.count("<near>") <= len(told)
        said += [word for word in words if word == "<near>"]
    assert said


def test_the_arena_tells_the_trained_policy_of_tables_to_train_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[list[dict[str, Any]]] = []

    def calls(policy: Any, tools: Any, budget: int) -> Any:
        told.append(looked(tools))
        return iter(())

    class Silent:
        def session(self) -> None: ...

    monkeypatch.setattr(contest, "_judgements", calls)
    monkeypatch.setattr(contest, "policy_of", lambda *_: None)
    train = [table for table in measured() if table.family != VARIANCE.family]
    contest.contest(Silent(), train, [VARIANCE], (), 1)  # type: ignore[arg-type]
    want = looked(ReplayTools.of(VARIANCE, 0, TableMemory(train).neighbours(VARIANCE)))
    assert told == [want] * len(BUDGETS) and want
    alone = contest.TrainedRival(Silent(), [VARIANCE], 3)  # type: ignore[arg-type]
    assert list(alone.play(view_of(VARIANCE), 0)) == [] and told[-1] == []


def test_nothing_is_worked_out_before_it_is_asked_for_and_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trainer.world import neighbours

    asked: list[str] = []
    real = winner

    def counting(table: Table) -> Any:
        asked.append(table.id)
        return real(table)

    monkeypatch.setattr(neighbours, "winner", counting)
    world = TableWorld(measured(), HeldOut(0.2), 4)
    assert asked == []
    for _ in range(2):
        for task in (*world.tasks, *world.test_tasks):
            world.tools(task, 1)
    assert sorted(asked) == sorted(world.tasks)
