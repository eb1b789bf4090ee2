"""The search policy on simulated landscapes: what it tries, in which order, when it stops."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from search_game import Game, Row, Table, at_random, needed

from cuda_agent_backend.agent.policies.search import tuner
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.protocol import Message, Policy, Stopped, Turn
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.schedule_space import space_of

PROPOSALS = tuple(
    Schedule.of({"sketch": "row", "unroll": u, "team": t, "stages": s})
    for u, t, s in ((4, 64, 2), (4, 64, 1), (8, 128, 2), (2, 32, 2), (4, 256, 1), (16, 64, 2))
)

MANY = tuple(Schedule.of({"sketch": "row", "team": 32 * n}) for n in range(1, 20))


def parameters(schedule: Schedule) -> tuple[float, float, float]:
    p = schedule.parameters(0)
    return math.log2(int(p["unroll"])), math.log2(int(p["team"])), float(int(p["stages"]))


def bowl(unroll: float, team: float) -> Callable[[Schedule], float]:
    """Speed-ups that fall off on all sides of one place."""

    def speed(schedule: Schedule) -> float:
        u, t, s = parameters(schedule)
        return 3.0 * math.exp(
            -0.12 * ((u - unroll) ** 2 + 0.5 * (t - team) ** 2 + 0.3 * (s - 2) ** 2)
        )

    return speed


def table(
    speed: Callable[[Schedule], float | None],
    proposals: tuple[Schedule, ...] = PROPOSALS,
    room: float = 100.0,
) -> Table:
    rows = {s: Row(s, f"c{n}", speed(s)) for n, s in enumerate(space_of(proposals).schedules())}
    return Table(proposals, rows, room)


def modelled(**options: Any) -> SearchPolicy:
    """A policy whose model chooses after the first proposals."""
    return SearchPolicy(**{"judgements": 16, "modelled": True, **options})


def patient(**options: Any) -> SearchPolicy:
    """One that goes on until all is tried."""
    return modelled(**{"judgements": 1000, "least_gain": -1.0, "at_floor": 0.0, **options})


def test_half_the_judgements_that_random_schedules_need_are_enough() -> None:
    landscapes = [table(bowl(*place)) for place in ((2, 6), (5, 5), (1, 8), (4, 7), (3, 8), (1, 5))]
    mine, chance = 0.0, 0.0
    for landscape in landscapes:
        game = Game(landscape, until=landscape.close).play(patient(judgements=40))
        mine += needed(game.judged, landscape) or math.inf
        by_chance = (needed(at_random(landscape, seed), landscape) for seed in range(101))
        chance += statistics.mean(n for n in by_chance if n is not None)
    assert 2 * mine <= chance


def test_the_first_judgements_are_the_first_proposals_in_their_order() -> None:
    landscape = table(bowl(5, 5))
    judged = Game(landscape).play(modelled()).judged
    assert judged[:4] == [landscape.rows[s].candidate for s in PROPOSALS[:4]]


def test_equal_answers_lead_to_equal_steps() -> None:
    landscape = table(bowl(5, 5))
    first, second = (Game(landscape).play(modelled(seed=3)).judged for _ in range(2))
    assert first == second and len(first) > 4


def test_no_candidate_is_judged_twice_even_where_schedules_print_the_same_source() -> None:
    plain = table(bowl(2, 6))
    rows = {
        s: Row(s, f"c{s.parameters(0)['unroll']}", 1.0 + 0.1 * parameters(s)[0]) for s in plain.rows
    }
    judged = Game(Table(PROPOSALS, rows, 100.0)).play(patient()).judged
    assert sorted(judged) == sorted(set(judged)) == sorted({row.candidate for row in rows.values()})


def test_it_is_not_drawn_to_where_schedules_fail() -> None:
    speed = bowl(2, 6)
    landscape = table(lambda s: None if parameters(s)[1] > 7 else speed(s))
    judged = Game(landscape).play(modelled()).judged
    by_name = {row.candidate: row for row in landscape.rows.values()}
    failed = [name for name in judged if by_name[name].speedup is None]
    assert needed(judged, landscape) is not None
    assert len(failed) <= 3


@pytest.mark.parametrize(("policy", "judged"), [(SearchPolicy(), 4), (modelled(), 16)])
def test_where_everything_fails_it_ends_soon(policy: SearchPolicy, judged: int) -> None:
    game = Game(table(lambda s: None)).play(policy)
    assert game.over and not game.submitted
    assert len(game.judged) == judged < len(game.table.rows)


def test_in_order_it_goes_on_while_a_round_brings_something() -> None:
    rising = table(lambda s: 1.0 + 0.1 * [*space_of(MANY).schedules()].index(s), MANY)
    flat = table(lambda s: 1.2, MANY)
    first_fails = table(lambda s: None if s == MANY[0] else 1.2, MANY)
    judged = [len(Game(t).play(SearchPolicy()).judged) for t in (rising, flat, first_fails)]
    assert judged == [len(MANY), 8, 8]
    assert len(Game(rising).play(SearchPolicy(judgements=10)).judged) == 10


@pytest.mark.parametrize(
    ("speed", "judged"), [(0.9, 8), (1.0, len(MANY)), (1.05, len(MANY)), (1.1, 8)]
)
def test_in_order_it_goes_on_where_a_few_percent_are_missing(speed: float, judged: int) -> None:
    assert len(Game(table(lambda s: speed, MANY)).play(SearchPolicy()).judged) == judged


def test_where_no_schedule_is_taken_nothing_is_judged() -> None:
    game = Game(Table(PROPOSALS, {}, 100.0)).play(modelled())
    assert game.over and game.judged == [] and game.submitted == []


def test_the_one_schedule_that_there_is_is_judged_and_submitted() -> None:
    only = Schedule.of({"lanes": "inner"})
    game = Game(table(lambda s: 1.5, (only,))).play(modelled())
    assert game.judged == ["c0"] == game.submitted


def test_without_proposals_it_gives_up() -> None:
    game = Game(Table((), {}, 100.0)).play(modelled())
    assert game.over and game.judged == []


def test_a_flat_landscape_is_left_early() -> None:
    game = Game(table(lambda s: 1.2)).play(modelled(judgements=100))
    assert game.over and 4 <= len(game.judged) <= 10 and len(game.submitted) == 1


def test_a_hopeless_landscape_is_left_early_with_nothing() -> None:
    game = Game(table(lambda s: 0.4)).play(modelled(judgements=100))
    assert game.over and len(game.judged) <= 8 and game.submitted == []


def test_at_the_roofline_floor_nothing_more_is_tried() -> None:
    game = Game(table(lambda s: 2.0, room=1.99)).play(modelled(first=1))
    assert len(game.judged) == 1 and game.submitted == game.judged


@pytest.mark.parametrize("most", [1, 3, 7])
def test_the_budget_of_judgements_is_kept(most: int) -> None:
    game = Game(table(bowl(2, 6))).play(modelled(judgements=most, least_gain=-1.0))
    assert len(game.judged) == most and len(game.submitted) == 1


def test_the_budget_of_seconds_is_what_tools_say_they_took() -> None:
    class Slow(Game):
        def _answer(self, call: Any) -> dict[str, Any]:
            return {**super()._answer(call), "seconds": 1.0}

    game = Slow(table(bowl(5, 5))).play(patient(seconds=10.0))
    assert game.over and len(game.judged) <= 6 and len(game.submitted) == 1


def test_noise_of_a_few_percent_does_not_mislead_it() -> None:
    speed = bowl(5, 5)
    quiet = table(speed)
    reached = []
    for seed in range(5):
        chance = random.Random(seed)
        rows = {
            s: Row(
                s,
                r.candidate,
                r.speedup,
                tuple((r.speedup or 0.0) * chance.gauss(1, 0.05) for _ in range(48)),
            )
            for s, r in quiet.rows.items()
        }
        noisy = Table(PROPOSALS, rows, 100.0)
        reached.append(needed(Game(noisy, seed).play(modelled()).judged, noisy))
    assert sum(n is not None for n in reached) >= 4


def test_what_won_on_a_neighbour_is_tried_first() -> None:
    landscape = table(bowl(5, 5))
    best = max(landscape.rows.values(), key=lambda row: row.speedup or 0.0)
    known = [
        {"distance": 0.2, "schedule": [dict(k) for k in best.schedule.kernels], "speedup": 2.0}
    ]
    game = Game(landscape, neighbours=known).play(modelled())
    assert game.judged[0] == best.candidate
    assert game.judged[1] == landscape.rows[PROPOSALS[0]].candidate


def test_neighbours_of_known_tasks_need_a_third_fewer_judgements() -> None:
    places = [(5.0, 5.0), (4.0, 7.5), (1.0, 8.0), (5.0, 8.0), (1.0, 5.0)]
    alone, told = 0, 0
    for unroll, team in places:
        landscape, near = table(bowl(unroll, team)), table(bowl(unroll - 0.4, team + 0.4))
        won = max(near.rows.values(), key=lambda row: row.speedup or 0.0).schedule
        known = [{"distance": 0.1, "schedule": [dict(k) for k in won.kernels]}]
        for neighbours in ((), known):
            game = Game(landscape, 0, neighbours, landscape.close).play(patient(judgements=40))
            judgements = needed(game.judged, landscape)
            assert judgements is not None
            alone, told = (
                (alone + judgements, told) if not neighbours else (alone, told + judgements)
            )
    assert told <= alone * 2 / 3


def test_a_neighbour_that_misleads_costs_little() -> None:
    landscape = table(bowl(2, 6))
    worst = min(landscape.rows.values(), key=lambda row: row.speedup or 0.0).schedule
    known = [{"distance": 0.1, "schedule": [dict(k) for k in worst.kernels]}]
    judged = Game(landscape, neighbours=known).play(modelled()).judged
    assert needed(judged, landscape) == 2


def test_a_timing_that_is_known_to_be_noisy_does_not_end_the_search() -> None:
    class Lucky(Game):
        """The first profile is far too good, and its interval says that it may be."""

        def _profile(self, row: Row) -> dict[str, Any]:
            answer = super()._profile(row)
            if len(self.judged) == 1:
                answer["speedup"] = {"low": 0.3, "median": 4.0, "high": 5.0}
            return answer

    landscape = table(bowl(5, 5), room=4.1)
    judged = Lucky(landscape, until=landscape.close).play(modelled()).judged
    assert needed(judged, landscape) is not None


PRODUCTS = tuple(
    Schedule.of({"sketch": "contract", "products": products, "tile_m": 32 * n})
    for products in (1, 3, 6)
    for n in range(1, 9)
)


def products(schedule: Schedule) -> int:
    return int(schedule.parameters(0)["products"])


class Judging(Game):
    """Judges what is submitted, and goes on: what multiplies as coarsely as `coarse`, or more, is wrong."""

    coarse = 1

    def _answer(self, call: Any) -> dict[str, Any]:
        answer = super()._answer(call)
        if call.name != "submit" or "candidate" not in call.arguments:
            return answer
        wrong = products(self._by_name[self.submitted[-1]].schedule) <= self.coarse
        self.over = not wrong
        return {"ok": not wrong, "status": "wrong" if wrong else "wins", "reason": "judged"}


@pytest.mark.parametrize("coarse", [1, 3])
def test_what_is_too_coarse_is_given_up_for_what_is_exact(coarse: int) -> None:
    """All that the first rounds measure are faster, and wrong as the full judgement finds."""
    landscape = table(lambda s: 12.0 / products(s), PRODUCTS)
    game = Judging(landscape)
    game.coarse = coarse
    game.play(SearchPolicy(judgements=8))
    submitted = [products(game._by_name[name].schedule) for name in game.submitted]
    assert submitted == [p for p in (1, 3, 6) if p <= coarse] + [3 if coarse == 1 else 6]
    assert len(game.judged) <= 8 * len(submitted)


def test_after_a_wrong_profile_nothing_as_coarse_is_compiled() -> None:
    landscape = table(lambda s: None if products(s) == 1 else 2.0, PRODUCTS)
    game = Game(landscape).play(SearchPolicy())
    tried = [products(game._by_name[name].schedule) for name in game.judged]
    assert tried[:4] == [1, 1, 1, 1] and 1 not in tried[4:]
    assert products(game._by_name[game.submitted[0]].schedule) == 3


class Late(Judging):
    """Says that the time is up after the first answer to a tool, and notes what is called from then on."""

    after = "profile"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.called_late: list[str] = []

    def play(self, policy: Policy) -> Game:
        return super().play(_Interrupted(policy, self))


@dataclass
class _Interrupted:
    """A policy between whose calls a message comes."""

    policy: Policy
    game: Late
    name: str = "late"
    _said: list[Message] = field(default_factory=list)
    _place: int = 0

    def act(self, messages: Sequence[Message], tools: Any) -> Turn | Stopped:
        if not self._said and messages[-1].get("name") == self.game.after:
            self._said = [{"role": "user", "content": "The time is up."}]
            self._place = len(messages)
        late = [*messages[: self._place], *self._said, *messages[self._place :]]
        turn = self.policy.act(late, tools)
        if self._said and not isinstance(turn, Stopped):
            self.game.called_late += [call.name for call in turn.calls]
        return turn


@pytest.mark.parametrize("after", ["profile", "submit"])
def test_a_wrong_one_when_the_time_is_up_leaves_what_was_timed_and_is_more_exact(
    after: str,
) -> None:
    """Nothing is compiled or timed any more, and nothing as coarse as what was wrong is judged."""
    mixed = tuple(sorted(PRODUCTS, key=lambda s: int(s.parameters(0)["tile_m"])))
    game = Late(table(lambda s: 12.0 / products(s), mixed))
    game.after = after
    game.play(SearchPolicy())
    submitted = [products(game._by_name[name].schedule) for name in game.submitted]
    assert submitted == [1, 3] and set(game.called_late) == {"submit"}


def test_what_says_nothing_of_its_products_is_left_alone() -> None:
    same = tuple(
        Schedule.of({"sketch": "contract", "products": 1, "tile_m": n}) for n in range(1, 12)
    )
    plain = (*same, Schedule.of({"sketch": "row", "team": 32}))
    game = Game(table(lambda s: None if s == plain[0] else 2.0, plain)).play(SearchPolicy())
    assert len(game.judged) == 8 and game.submitted == ["c1"]


def test_a_neighbour_without_a_schedule_is_passed_over() -> None:
    game = Game(table(bowl(5, 5)), neighbours=[{"distance": 0.2, "source": "int x;"}])
    assert game.play(modelled()).judged[0] == "c0"


def test_without_its_library_the_proposals_are_tried_in_order(monkeypatch: Any) -> None:
    monkeypatch.setattr(tuner, "available", lambda: False)
    landscape = table(bowl(4, 6))
    game = Game(landscape).play(modelled())
    assert game.judged == [landscape.rows[s].candidate for s in PROPOSALS]
    assert len(game.submitted) == 1
