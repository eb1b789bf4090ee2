"""The list of kernel sources: what is proposed today is what the list says, and a change of a source does not pass."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import sources
from benchmarks.sources_digest import LENGTH, REFUSED, Digested, Outcome, Way, digest_of
from benchmarks.sources_subjects import TARGETS, spread, subjects, tasks
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Buffer, Launch, Plan, TensorSpec

SAMPLE = tuple(
    f"practice/{name}"
    for name in (
        "fused/attention_pooling",
        "fused/conv2d_avg_pool_tanh",
        "fused/decayed_causal_mixing",
        "fused/gated_pair_of_linears",
        "fused/linear_cross_entropy",
        "fused/quadratic_forms_of_rows",
        "networks/gru_tagger_both_ways",
        "single/attention_with_bias",
        "single/conv1d_grouped",
        "single/conv_transpose2d_depthwise",
        "single/conv_transpose2d_overlapping",
        "single/sample_at_points",
        "single/scatter_add_counts",
        "single/top_values_of_rows",
    )
)
"""Together they have schedules of nearly every sketch."""
LISTED = json.loads(sources.FILE.read_text(encoding="utf-8"))

PLAN = Plan(
    target="cuda",
    buffers=(
        Buffer("x", "input", TensorSpec("float32", (8,), (1,))),
        Buffer("y", "output", TensorSpec("float32", (8,), (1,))),
    ),
    steps=(Launch("k", (1, 1, 1), (8, 1, 1), 0, ("x", "y")),),
)
OTHER = Launch("k", (2, 1, 1), (8, 1, 1), 0, ("x", "y"))
CANDIDATE = Candidate("cuda", "cuda", "some source", PLAN, "sketch", "[{}]")
WAYS = (Way("[1]", "a" * LENGTH), Way("[2]", "b" * LENGTH), Way("[3]", REFUSED))
REGIONS = (
    Digested("t" * LENGTH, "map", WAYS, WAYS[:1]),
    Digested("u" * LENGTH, reasons=("no sketch",)),
)
ENTRY = Outcome("some cuda float32", REGIONS)


def differences(now: Outcome) -> list[str]:
    listed = json.loads(sources.text_of([ENTRY]))
    return list(sources.differences(listed, now))


def with_region(number: int, **changes: object) -> Outcome:
    regions = list(REGIONS)
    regions[number] = dataclasses.replace(regions[number], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(ENTRY, regions=tuple(regions))


def test_a_digest_is_the_same_each_time_and_in_each_process() -> None:
    assert digest_of(CANDIDATE) == digest_of(dataclasses.replace(CANDIDATE))
    assert digest_of(CANDIDATE) == "6e1db9be2e99f725"


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "some sourcf"},
        {"language": "triton"},
        {"label": "[]"},
        {"plan": dataclasses.replace(PLAN, steps=(OTHER,))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_whatever_a_candidate_says_counts_in_its_digest(changes: dict[str, object]) -> None:
    assert digest_of(dataclasses.replace(CANDIDATE, **changes)) != digest_of(CANDIDATE)  # type: ignore[arg-type]


def test_a_list_does_not_differ_from_what_it_was_made_of() -> None:
    assert differences(ENTRY) == []


def test_a_changed_source_is_reported_with_its_schedule() -> None:
    changed = (WAYS[0], Way("[2]", "c" * LENGTH), WAYS[2])
    (found,) = differences(with_region(0, ways=changed))
    assert found.startswith("some cuda float32, region 0, schedule 1: ") and found.endswith(" [2]")


def test_a_changed_source_under_tf32_is_reported() -> None:
    (found,) = differences(with_region(0, tf32=(Way("[1]", "c" * LENGTH),)))
    assert "region 0 in TF32, schedule 0" in found


def test_a_schedule_that_is_refused_no_more_is_reported() -> None:
    (found,) = differences(with_region(0, ways=(*WAYS[:2], Way("[3]", "c" * LENGTH))))
    assert f"schedule 2: {REFUSED} -> " in found


def test_schedules_that_are_gone_are_reported() -> None:
    (found,) = differences(with_region(0, ways=WAYS[:2]))
    assert "3 schedules in the list, 2 now" in found


def test_another_task_and_a_region_that_is_covered_now_are_reported() -> None:
    assert "task" in differences(with_region(0, task="v" * LENGTH))[0]
    assert "not covered in the list" in differences(with_region(1, family="map", ways=WAYS))[0]


def test_regions_that_are_gone_entries_that_are_new_and_problems_are_reported() -> None:
    assert "2 regions in the list, 1 now" in differences(Outcome(ENTRY.name, REGIONS[:1]))[0]
    assert differences(Outcome("other", REGIONS)) == ["other: not in the list"]
    (found,) = differences(Outcome(ENTRY.name, (), "slow"))
    assert "2 regions in the list, error: slow now" in found


def test_reasons_and_families_do_not_count() -> None:
    assert differences(with_region(1, reasons=("in other words",))) == []
    assert differences(with_region(0, family="maps", reasons=("in other words",))) == []


def test_a_sample_is_spread_from_the_first_to_the_last() -> None:
    assert spread("abcdefgh", 4) == ["a", "c", "e", "g"]
    assert spread("abc", 9) == ["a", "b", "c"]


def test_the_list_has_an_entry_for_each_subject_and_no_errors() -> None:
    assert list(LISTED["entries"]) == sorted(subject.name for subject in subjects(tasks()))
    assert [n for n, entry in LISTED["entries"].items() if isinstance(entry, str)] == []


@pytest.mark.skipif(bool(sources.stale(LISTED)), reason=sources.stale(LISTED) or "as listed")
def test_the_sources_of_a_sample_are_those_of_the_list() -> None:
    wanted = [s for s in subjects(SAMPLE) if not s.training]
    assert {s.target for s in wanted} == set(TARGETS)
    found = [d for one in sources.outcomes(wanted, 2) for d in sources.differences(LISTED, one)]
    assert found == [], "python -m benchmarks.sources writes the list anew"
