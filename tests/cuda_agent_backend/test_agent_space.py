"""The space of schedules around a sketch's proposals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cuda_agent_backend.agent.policies.search.surrogate import features
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.schedule_space import kind_of, space_of

parameters = st.fixed_dictionaries(
    {
        "unroll": st.sampled_from((1, 2, 4, 8)),
        "stream": st.integers(0, 1),
        "lanes": st.sampled_from(("inner", "outer")),
    }
)
proposals = st.lists(
    st.lists(parameters, min_size=1, max_size=3).map(lambda kernels: Schedule.of(*kernels)),
    max_size=6,
)


@given(proposals, st.integers(1, 40))
def test_proposals_come_first_and_nothing_twice(given: list[Schedule], most: int) -> None:
    found = space_of(given).schedules(most)
    first = list(dict.fromkeys(given))
    assert found[: len(first)] == first[:most]
    assert len(found) == len(set(found)) <= most


@given(proposals)
def test_every_schedule_of_a_space_is_of_the_kind_of_a_proposal(given: list[Schedule]) -> None:
    kinds = {kind_of(schedule) for schedule in given}
    assert {kind_of(schedule) for schedule in space_of(given).schedules()} <= kinds


def test_numbers_have_halves_and_doubles_and_words_only_themselves() -> None:
    first, second = (
        Schedule.of({"sketch": "row", "unroll": 4}),
        Schedule.of({"sketch": "map", "unroll": 2}),
    )
    assert space_of([first, second]).describe() == [
        [{"sketch": ["row"], "unroll": [2, 4, 8]}],
        [{"sketch": ["map"], "unroll": [1, 2, 4]}],
    ]


def test_what_accuracy_or_the_machine_sets_is_only_as_proposed() -> None:
    one = Schedule.of({"run": 32, "products": 6, "group": 2, "width": 8, "threads": 1, "stream": 0})
    assert space_of([one]).describe() == [
        [
            {
                "run": [32],
                "products": [6],
                "group": [2],
                "width": [8],
                "threads": [1],
                "stream": [0, 1],
            }
        ]
    ]


def test_kernels_are_mixed_nearest_to_the_best_guess_first() -> None:
    made = [Schedule.of({"u": a}, {"v": b}) for a, b in ((0, 0), (1, 0), (0, 1))]
    assert space_of(made).schedules()[3] == Schedule.of({"u": 1}, {"v": 1})


@given(proposals)
def test_schedules_are_points_between_nought_and_one(given: list[Schedule]) -> None:
    schedules = space_of(given).schedules()
    points = features(schedules)
    assert points.shape[0] == len(schedules)
    assert points.size == 0 or (points.min() >= 0 and points.max() <= 1)
    if len(schedules) > 1:
        assert len({tuple(p) for p in points.tolist()}) == len(schedules)
