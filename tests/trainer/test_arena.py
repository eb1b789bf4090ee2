"""The arena: splits that leak nothing, figures by hand, and the command from end to end."""

from __future__ import annotations

import json
import math
import random
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from world_kit import FILE, made, measured

from cuda_agent_backend.codegen.ir.schedule import Schedule
from trainer.arena import progress as progress_module
from trainer.arena.agreement import agreement, spearman
from trainer.arena.figures import (
    Game,
    bootstrapped,
    figures,
    median,
    paired,
    quantile,
    ratio,
    saved,
)
from trainer.arena.play import BUDGETS, Played, answers, play
from trainer.arena.progress import LINES_S
from trainer.arena.report import page
from trainer.arena.splits import (
    SPLITS,
    by_device,
    by_dtype,
    by_family,
    by_shape,
    judged_on,
    playable,
)
from trainer.arena.tournament import jobs_of, run_job, tournament
from trainer.command import main
from trainer.rivals.protocol import Play, View, in_turn
from trainer.rivals.simple import Uniform
from trainer.world.rows import Row, Table
from trainer.world.worth import worth_of_best

SCHEDULES = tuple(Schedule.of({"sketch": "row", "team": 32 * n}) for n in range(1, 6))
SPEEDS = (1.0, None, 2.0, 4.0, 3.9)
TABLE = made(SCHEDULES, lambda s: SPEEDS[SCHEDULES.index(s)])


class Fixed:
    """Rows in a given order."""

    name = "fixed"

    def __init__(self, *rows: int) -> None:
        self.rows = rows

    def fit(self, tables: object, seed: int) -> None: ...

    def play(self, view: View, seed: int) -> Play:
        return in_turn(self.rows)


def test_budgets_regret_and_judgements_are_counted_as_by_hand() -> None:
    played = play(Fixed(1, 0, 2, 4, 3), TABLE, 0)
    assert played.judged == (1, 0, 2, 4, 3)
    assert played.judgements == 4, "the row of 3.9 is within 95 % of 4.0"
    one, three, ten = (played.at[budget] for budget in (1, 3, 10))
    assert (one.slowdown, one.speedup, one.hit) == (4.0, 1.0, False), "a failure costs a judgement"
    assert (three.slowdown, three.exploration, three.selection) == pytest.approx((2.0, 2.0, 1.0))
    assert ten.slowdown == pytest.approx(1.0) and ten.hit and ten.speedup == pytest.approx(4.0)


def test_what_never_comes_close_is_censored() -> None:
    played = play(Fixed(0, 2), TABLE, 0)
    assert (played.judged, played.judgements, played.seconds) == ((0, 2), None, None)


def noisy(speed: float, told: float) -> tuple[tuple[float, ...], ...]:
    """Timings that say another speed than the last ones among leaders."""
    return (1.0 / told,) * 4, (1.0,) * 4, (1.0 / speed,) * 9, (1.0,) * 9


def test_choosing_wrongly_is_told_from_not_having_looked() -> None:
    rows = tuple(
        Row(f"c{n}", (s.to_json(),), n, True, "correct", "", "", None, "{}", 0, None, None, None, None,
            0.0, 0.0, 0.0, *noisy(speed, told))
        for n, (s, speed, told) in enumerate(zip(SCHEDULES, (4.0, 2.0, 1.0), (2.5, 3.0, 1.0), strict=False))
    )  # fmt: skip
    table = made(SCHEDULES[:3], lambda _: 1.0)
    table = replace(table, rows=rows)
    both = play(Fixed(0, 1, 2), table, 0).at[3]
    assert (both.exploration, both.selection, both.slowdown) == pytest.approx((1.0, 2.0, 2.0))
    late = play(Fixed(2, 1), table, 0).at[3]
    assert (late.exploration, late.selection, late.slowdown) == pytest.approx((2.0, 1.0, 2.0))


def test_answers_are_what_lies_within_noise_of_the_best() -> None:
    assert answers(TABLE) == {3}
    assert answers(made(SCHEDULES, lambda s: 3.99 if s == SCHEDULES[0] else 4.0)) == {0, 1, 2, 3, 4}
    assert answers(made(SCHEDULES, lambda _: None)) == frozenset()


def timed(draw: random.Random, pairs: int) -> Row:
    """One of many equals, as clocks tell it."""
    own = tuple(draw.lognormvariate(0.0, 0.1) for _ in range(pairs))
    text = SCHEDULES[0].to_json()
    base = Row(
        f"c{draw.random()}", (text,), 0, True, "correct", seconds=own, baseline=(1.0,) * pairs
    )
    return replace(base, retimed=own, retimed_baseline=(1.0,) * pairs)


def test_the_best_of_equals_is_worth_as_much_as_each() -> None:
    """The largest median is the luckiest one's; what is taken for its worth has no share in that luck."""
    draw = random.Random(3)
    several = [[timed(draw, 16) for _ in range(8)] for _ in range(400)]
    largest = statistics.fmean(max(row.speed or 0.0 for row in rows) for rows in several)
    assert largest > 1.03
    assert abs(statistics.fmean(map(worth_of_best, several)) - 1.0) < 0.01
    few = [timed(draw, 2), timed(draw, 2)]
    assert worth_of_best(few) == max(row.speed or 0.0 for row in few), "no half says anything"
    assert worth_of_best([]) == 0.0
    several[0] = [replace(row, retimed=(), retimed_baseline=()) for row in several[0]]
    assert worth_of_best([*several[0], *few]) == worth_of_best(several[0]), "who was hopeless"


def test_leaders_alone_say_what_the_best_is_worth() -> None:
    """One that was never timed among them had other kernels beside it, and few pairs."""
    draw = random.Random(4)
    leaders = [timed(draw, 16) for _ in range(3)]
    lucky = Row(
        "c", (SCHEDULES[0].to_json(),), 0, True, "correct", seconds=(0.1,) * 4, baseline=(1.0,) * 4
    )
    assert worth_of_best([*leaders, lucky]) == worth_of_best(leaders) < 2.0


def test_chance_plays_other_places_in_other_tables() -> None:
    several = [t for t in tables() if len(t.rows) > 9]
    first = {play(Uniform(), t, 0).judged[0] for t in several}
    assert len(several) > 3 and len(first) > 1
    assert play(Uniform(), several[0], 0).judged == play(Uniform(), several[0], 0).judged


@pytest.mark.parametrize("name", [*SPLITS])
def test_rivals_are_tested_on_complete_tables_and_learn_from_all(name: str) -> None:
    several = [
        replace(table, complete=n % 3 > 0, id=f"{kind}{n}", device_name=kind, dtype=kind)
        for kind in ("a", "b")
        for n, table in enumerate(tables())
    ]
    folds = SPLITS[name](several)
    assert folds and all(several[n].complete for fold in folds for n in fold.test)
    assert any(not several[n].complete for fold in folds for n in fold.train)
    none = [replace(table, complete=False) for table in several]
    assert any(fold.test for fold in SPLITS[name](none)), "where none is, all are played"


def test_rivals_are_compared_table_by_table() -> None:
    """One is twice as slow on both tables, which differ a hundredfold: the interval has no scatter."""
    found = play(Fixed(3), TABLE, 0)

    def games(factor: float) -> list[Game]:
        slowdowns = {"a": factor, "b": 100.0 * factor}
        at = {name: {3: replace(found.at[3], slowdown=slow)} for name, slow in slowdowns.items()}
        return [Game(name, name, 0, replace(found, at=at[name])) for name in slowdowns]

    over = paired(games(2.0), games(1.0), 3)
    assert over == pytest.approx({"value": 2.0, "low": 2.0, "high": 2.0})


def test_seconds_are_compared_where_both_came_close() -> None:
    mine = [game("a", "a", 1), game("b", "b", None)]
    today = [game("a", "a", 3), game("b", "b", 2)]
    assert saved(mine, today) == 2.0, "giving up on a table saves nothing"
    assert saved([game("b", "b", None)], today) == 0.0


def tables() -> list[Table]:
    return list(measured())


@pytest.mark.parametrize("name", [*SPLITS])
def test_no_test_table_is_learnt_from_in_any_split(name: str) -> None:
    several = [
        *tables(),
        *(made(SCHEDULES, lambda _: 1.0, t, id=f"d{n}", device_name="other") for n, t in enumerate(tables())),
        *(made(SCHEDULES, lambda _: 1.0, t, id=f"h{n}", dtype="float16") for n, t in enumerate(tables()[:4])),
    ]  # fmt: skip
    folds = SPLITS[name](several)
    assert folds
    for fold in folds:
        assert fold.train and fold.test and not set(fold.train) & set(fold.test)


def test_a_left_out_family_is_in_no_training_table_and_all_are_left_out_once() -> None:
    folds = by_family(tables())
    for fold in folds:
        known = {tables()[n].family for n in fold.train}
        assert not known & {tables()[n].family for n in fold.test}
    several = tables()
    numbers = playable(several)
    left_out = [{several[n].family for n in set(numbers) - set(fold.train)} for fold in folds]
    assert sorted(name for part in left_out for name in part) == sorted(
        {several[n].family for n in numbers}
    )
    for fold, part in zip(folds, left_out, strict=True):
        assert fold.test == judged_on(several, [n for n in numbers if several[n].family in part])


def test_unseen_sizes_are_of_graphs_that_were_seen() -> None:
    folds = by_shape(tables())
    assert folds
    for fold in folds:
        known = {tables()[n].structure for n in fold.train}
        digests = {tables()[n].parsed.digest for n in fold.train}
        for n in fold.test:
            assert tables()[n].structure in known
            assert tables()[n].parsed.digest not in digests


def test_a_task_learnt_on_one_device_is_not_asked_about_on_another() -> None:
    several = [
        *tables(),
        *(replace(t, id=f"o{t.id}", device_name="other") for t in tables()),
    ]
    (fold,) = by_device(several)
    learnt = {several[n].parsed.digest for n in fold.train}
    assert {several[n].device_name for n in fold.train} == {tables()[0].device_name}
    assert {several[n].device_name for n in fold.test} == {"other"}
    assert not learnt & {several[n].parsed.digest for n in fold.test}
    assert by_device(tables()) == by_dtype(tables()) == []


def game(table: str, family: str, needed: int | None, seed: int = 0) -> Game:
    found = play(Fixed(3), TABLE, 0)
    return Game(
        table, family, seed, Played(found.judged, found.at, needed, float(needed or 0) or None)
    )


def test_a_bootstrap_draws_families_and_not_tables() -> None:
    """Ten tables of one family that agree are one observation: the interval spans both families."""
    games = [game(f"a{n}", "a", 1) for n in range(10)] + [game("b", "b", 30)]
    found = bootstrapped(
        games, lambda g: float(g.played.judgements or 0), lambda v: sum(v) / len(v)
    )
    assert found["value"] == pytest.approx(40 / 11)
    assert (found["low"], found["high"]) == (1.0, 30.0)
    alike = bootstrapped(games[:10], lambda g: 1.0, lambda v: sum(v) / len(v))
    assert alike == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_medians_and_quantiles_of_what_never_came_are_never() -> None:
    assert median([1.0, 2.0, math.inf]) == 2.0 and median([1.0, math.inf]) == math.inf
    assert quantile([1.0, 2.0, 3.0, math.inf], 0.75) == 3.0
    assert quantile([1.0, 2.0, 3.0, math.inf], 0.9) == math.inf
    games = [game("a", "a", None), game("b", "b", None), game("c", "c", 2)]
    close = figures(games)["to_close"]
    assert close["judgements"]["value"] is None and close["censored"] == pytest.approx(2 / 3)
    assert ratio(games, [game(t, t, 31) for t in "abc"])["value"] == pytest.approx(
        (2 / 31) ** (1 / 3)
    )


def test_a_tournament_plays_every_job_and_the_page_shows_every_rival() -> None:
    rivals = ["random", "order", "portfolio"]
    jobs = jobs_of(tables(), ["family", "device"], rivals, 2)
    results = tournament([], tables(), jobs)
    assert set(results.games) == {("family", name) for name in rivals}, "there is one device"
    for games in results.games.values():
        assert len(games) == 2 * sum(len(fold.test) for fold in by_family(tables()))
    found = json.loads(json.dumps(results.to_json(tables())))
    text = page(found)
    assert all(f"| {name} |" in text for name in rivals)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
    three = found["splits"]["family"]["order"]["at"]["3"]
    assert three["slowdown"]["low"] <= three["slowdown"]["value"] <= three["worst_slowdown"]
    random_over = found["splits"]["family"]["order"]["slowdown_over"]
    assert set(random_over) == {"random"} and random_over["random"]["3"]["value"] > 0
    every = results.to_json(tables(), "order")["splits"]["family"]["order"]["slowdown_over"]
    assert set(every) == {"random", "portfolio"}
    assert run_job(jobs[0], tables())[0].played.at.keys() == set(BUDGETS)


def test_the_command_writes_figures_a_page_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    wanted = ["arena", str(FILE), "--out", str(tmp_path), "--seeds", "1"]
    assert main([*wanted, "--rivals", "random,order,nearest", "--splits", "family,shape"]) == 0
    found = json.loads((tmp_path / "arena.json").read_text())
    assert set(found["splits"]) == {"family", "shape"} and found["versions"]["lightgbm"]
    assert (tmp_path / "arena.md").read_text() in capsys.readouterr().out
    assert {p.name for p in tmp_path.glob("*.png")} == {"arena-family.png", "arena-shape.png"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rivals", "nobody"], "no rival is called nobody"),
        (["--splits", "weather"], "no split is called weather"),
        (["--splits", "device"], "too few or too much alike"),
    ],
    ids=["rival", "split", "tables"],
)
def test_what_cannot_be_played_is_said_in_a_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["arena", str(FILE), "--out", str(tmp_path), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_tables_that_repeat_agree_and_those_turned_around_do_not() -> None:
    again = [replace(table, device_name="other") for table in tables()]
    same = agreement(tables(), again)
    assert same["compared"] == sum(sum(r.works for r in t.rows) >= 3 for t in tables())
    assert same["rank_correlation"] == same["winner_within_noise"] == same["verdicts"] == 1.0
    assert same["seconds_ratio"]["median"] == 1.0
    assert same["slowdown"] <= 1.0, "what was chosen by the same luck is better than it is worth"
    upside_down = made(SCHEDULES, lambda s: (4.0, None, 2.0, 1.0, 1.1)[SCHEDULES.index(s)])
    turned = agreement([TABLE], [upside_down])
    assert turned["rank_correlation"] == pytest.approx(-1.0)
    assert (turned["winner_within_noise"], turned["slowdown"]) == (0.0, 4.0)
    assert agreement([TABLE], [])["compared"] == 0


def test_ranks_of_equal_values_are_shared() -> None:
    assert spearman([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]) == pytest.approx(1.0)
    assert spearman([1.0, 1.0, 2.0], [1.0, 1.0, 2.0]) == pytest.approx(1.0)
    assert spearman([1.0, 1.0], [1.0, 2.0]) == 0.0


def test_what_tables_hold_and_cost_is_told(tmp_path: Path) -> None:
    out = tmp_path / "tables.json"
    assert main(["tables", str(FILE), "--again", str(FILE), "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["tables"]["schedules"] == sum(len(t.rows) for t in tables())
    assert sum(found["tables"]["statuses"].values()) == found["tables"]["schedules"]
    assert found["tables"]["step_s"]["device"]["median"] > 0
    assert found["again"]["rank_correlation"] == pytest.approx(1.0)


def test_tables_are_packed_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all.parquet"
    assert main(["pack", str(FILE), "--out", str(out)]) == 0
    assert f"{len(tables())} tables" in capsys.readouterr().out and out.exists()
    assert main(["pack", str(tmp_path / "none"), "--out", str(out)]) == 2


def test_a_measurement_without_tasks_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["measure", str(tmp_path), "--device", "cpu", "--out", str(tmp_path / "o")]) == 2
    assert "no tasks" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["measure", str(tmp_path), "--out", "o", "--part", "3/2"])


def test_a_measurement_beside_tables_that_are_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    region = tmp_path / "region.json"
    region.write_text(measured()[0].task)
    missing = str(tmp_path / "none.parquet")
    words = ["measure", str(region), "--device", "cpu", "--out", str(tmp_path / "o")]
    assert main([*words, "--known", missing]) == 2
    assert missing in capsys.readouterr().err


def test_a_log_has_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(progress_module, "time", clock)
    with progress_module.progress(9, "games") as tell:
        for done in range(1, 10):
            now[0] += LINES_S / 4
            tell(done)
    assert capsys.readouterr().out.split("\n")[:2] == ["4 of 9 games", "8 of 9 games"]
