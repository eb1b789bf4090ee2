"""Rivals: what each asks for, that it learns from training tables only, and that it learns at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from world_kit import made, measured

from cuda_agent_backend.codegen.ir.schedule import Schedule
from trainer.arena.play import play
from trainer.rivals.features import vocabulary_of
from trainer.rivals.gaussian import Search
from trainer.rivals.nearest import Nearest
from trainer.rivals.portfolio import Portfolio
from trainer.rivals.protocol import Rival, View, view_of
from trainer.rivals.ranker import Data, RankedSearch, Ranker, Trees, slower
from trainer.rivals.registry import CONTROLS, RIVALS, missing
from trainer.rivals.simple import InOrder, Uniform
from trainer.world.rows import Table

MANY = tuple(
    Schedule.of({"sketch": "row", "unroll": u, "team": t, "stages": s})
    for s in (1, 2)
    for u in (1, 2, 4, 8)
    for t in (32, 64, 128, 256)
)
BEST = Schedule.of({"sketch": "row", "unroll": 4, "team": 256, "stages": 2})


def parameters(schedule: Schedule) -> tuple[float, float, float]:
    p = schedule.parameters(0)
    return math.log2(int(p["unroll"])), math.log2(int(p["team"])), float(int(p["stages"]))


def bowl(scale: float = 1.0) -> Callable[[Schedule], float]:
    """Fastest at `BEST`, slower on all sides."""

    def speed(schedule: Schedule) -> float:
        gaps = [a - b for a, b in zip(parameters(schedule), parameters(BEST), strict=True)]
        return scale * 3.0 * math.exp(-0.1 * sum(gap * gap for gap in gaps))

    return speed


def bowls(count: int) -> list[Table]:
    """As many tasks, on which the same schedule is the best."""
    return [
        made(MANY, bowl(1.0 + 0.2 * n), like, id=f"table {n}", family=f"family {n}")
        for n, like in zip(range(count), measured(), strict=False)
    ]


def judged(rival: Rival, table: Table, seed: int = 0) -> list[int]:
    return list(play(rival, table, seed, most=len(table.rows)).judged)


@pytest.mark.parametrize("name", [*RIVALS, *CONTROLS])
def test_every_row_is_asked_for_once_whatever_was_learnt(name: str) -> None:
    """On tables of which some candidates are wrong; nothing is learnt from none, and little from few."""
    table = min((t for t in measured() if len(t.rows) >= 10), key=lambda t: len(t.rows))
    others = [t for t in measured() if t.family != table.family]
    for training in ([], others[:5]):
        rival = (RIVALS | CONTROLS)[name]()
        assert rival.name == name
        rival.fit(training, 0)
        order = judged(rival, table)
        assert sorted(order) == list(range(len(table.rows)))
        assert order == judged(rival, table)


@pytest.mark.parametrize(
    "name", ["portfolio", "nearest", "search-warm", "ranker", "ranker-torch", "ranker-search"]
)
def test_what_is_best_on_all_training_tasks_is_soon_tried_on_another(name: str) -> None:
    *training, test = bowls(9)
    rival = RIVALS[name]()
    rival.fit(training, 0)
    first = judged(rival, test)[:3]
    shares = [(test.rows[row].speed or 0.0) / test.best for row in first]
    assert max(shares) >= 0.9


def test_a_portfolio_covers_what_its_first_choice_does_not() -> None:
    """Two kinds of task: one schedule for each comes before all second-best ones."""
    worst = MANY[0]

    def other(schedule: Schedule) -> float:
        return 3.0 if schedule == worst else 0.3

    tables = [*bowls(3), made(MANY, other, id="odd")]
    rival = Portfolio()
    rival.fit(tables, 0)
    assert rival.chosen[:2] == [BEST.to_json(), worst.to_json()]


def test_the_order_is_the_proposals_then_the_rest() -> None:
    table = max(measured(), key=lambda t: len(t.rows))
    order = judged(InOrder(), table)
    assert [table.rows[row].rank for row in order] == sorted(row.rank for row in table.rows)


def test_chance_differs_by_seed() -> None:
    (table,) = bowls(1)
    assert judged(Uniform(), table, 0) != judged(Uniform(), table, 1)


def test_a_nearer_task_counts_more() -> None:
    """Of two known tasks the one with the same graph says what comes first."""
    tables = [t for t in measured() if t.family == "addmm"]
    near = made(MANY, bowl(), tables[0], id="near")
    far = made(MANY, lambda s: 1.0 / bowl()(s), max(measured(), key=lambda t: t.family), id="far")
    rival = Nearest()
    rival.fit([far, near], 0)
    assert MANY[judged(rival, made(MANY, bowl(), tables[1], id="test"))[0]] == BEST


def test_features_know_nothing_of_what_judging_said() -> None:
    """The same rows for tables whose outcomes differ, and no more columns than the training tables have."""
    plain, failing = made(MANY, bowl()), made(MANY, lambda _: None)
    views = [view_of(table) for table in (plain, failing)]
    vocabulary = vocabulary_of(views)
    one, other = (vocabulary.rows(view) for view in views)
    assert one.shape == (len(MANY), vocabulary.width)
    assert np.array_equal(one, other, equal_nan=True)
    assert len(np.unique(one, axis=0)) == len(MANY)
    for table in measured():
        assert vocabulary.rows(view_of(table)).shape == (len(table.rows), vocabulary.width)


def test_a_view_has_nothing_that_judging_said() -> None:
    known = set(View.__dataclass_fields__)
    outcome = {"status", "seconds", "speed", "compile_s", "facts", "registers", "retimed"}
    assert not known & outcome


def test_labels_are_by_table_and_failures_are_the_slowest() -> None:
    tables = [made(MANY, lambda s: None if s == MANY[0] else bowl()(s), id="a"), *bowls(1)]
    data = Data(tables)
    assert data.groups == [len(MANY)] * 2 and data.x.shape[0] == len(data.share)
    assert data.share[0] == 0.0 and data.share.max() == 1.0
    assert slower(data.share).max() == slower(np.array([0.0]))[0] > 0
    assert slower(np.array([1.0]))[0] == 0.0


def test_a_ranker_of_shuffled_labels_is_no_better_than_chance() -> None:
    """Dealt anew, outcomes say nothing: over many deals the best is found as late as by chance."""
    tables = bowls(6)
    places = []
    for seed in range(12):
        rival = Ranker(shuffled=True)
        rival.fit(tables[:5], seed)
        order = judged(rival, tables[5], seed)
        places.append(order.index(MANY.index(BEST)))
    honest = Ranker()
    honest.fit(tables[:5], 0)
    assert judged(honest, tables[5]).index(MANY.index(BEST)) <= 1
    assert sum(places) / len(places) > len(MANY) / 5


def test_a_blind_search_finds_the_best_later() -> None:
    def needed(rival: Rival) -> int:
        found = [judged(rival, made(MANY[::-1], bowl(), id=str(n)), n) for n in range(3)]
        return sum(order.index(MANY[::-1].index(BEST)) for order in found)

    backwards = needed(Search())
    assert backwards < needed(Search(blind=True))


def test_a_search_that_begins_with_a_prior_begins_where_that_says() -> None:
    *training, test = bowls(9)
    rival = RankedSearch()
    rival.fit(training, 0)
    expected = rival.trees.predict(view_of(test))
    assert expected is not None
    assert judged(rival, test)[0] == int(np.argmin(expected))


@pytest.mark.parametrize("count", [6, 0], ids=["fitted", "nothing to learn from"])
def test_trees_are_kept_as_text(count: int) -> None:
    trees = Trees("lambdarank", 3)
    trees.fit(Data(bowls(count)))
    again = Trees.from_json(json.loads(json.dumps(trees.to_json())))
    for table in measured()[-3:]:
        found, same = (one.predict(view_of(table)) for one in (trees, again))
        assert (found is None) is (same is None) is (count == 0)
        if found is not None and same is not None:
            assert np.array_equal(found, same)


def test_a_rival_that_there_is_not_is_said_so() -> None:
    assert "no rival is called nobody" in missing(["nobody"])
    assert missing([*RIVALS, *CONTROLS]) == ""
