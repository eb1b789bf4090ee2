"""The conformance run: what cases are run on, what a result is held against, and the table that comes of it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.conformance import table
from benchmarks.conformance.cases import ROUNDS, Case, Cell, batches_of, cases_of, ordered, part
from benchmarks.conformance.compare import (
    AS_INDUCTOR,
    EQUAL,
    UNSETTLED,
    WRONG,
    Values,
    Yardsticks,
    judge,
)
from benchmarks.conformance.database import DTYPES, dtypes_of, operators
from benchmarks.conformance.rows import Rows
from benchmarks.conformance.samples import DIVISORS, copied, laid_out, resized, variants
from benchmarks.conformance.summary import BAD, OUTCOMES, bad, by_operator, summarise
from benchmarks.conformance.wide import in_float64
from benchmarks.store import versions


def values(*outputs: Tensor) -> Values:
    return Values({f"output {n}": x for n, x in enumerate(outputs)})


def held(eager: Tensor, inductor: Tensor | None, beyond: bool = False) -> Yardsticks:
    other = None if inductor is None else values(inductor)
    return Yardsticks(values(eager), values(eager.double()), lambda: other, None, beyond)


X = torch.linspace(1, 2, 100)
OFF = X + 0.01
COUNTS = torch.arange(100)


@pytest.mark.parametrize(
    ("found", "eager", "inductor", "verdict"),
    [
        (X, X, OFF, EQUAL),
        (OFF, X, OFF, AS_INDUCTOR),
        (OFF, X, X, WRONG),
        (X + 1, X, OFF, WRONG),
        (OFF, X, None, UNSETTLED),
        (COUNTS + 1, COUNTS, COUNTS, WRONG),
        (COUNTS * (COUNTS > 0) + 7 * (COUNTS == 5), COUNTS, COUNTS + 3 * (COUNTS == 5), UNSETTLED),
        (COUNTS + 7 * (COUNTS == 6), COUNTS, COUNTS + 3 * (COUNTS == 5), WRONG),
        (X.where(X < 1.9, torch.nan), X, X, WRONG),
        (X.half(), X, X, WRONG),
        (X[:50], X, X, WRONG),
        (X.reshape(2, 50).t().contiguous().t(), X.reshape(2, 50), X.reshape(2, 50), WRONG),
    ],
)
def test_a_result_is_wrong_where_eager_and_inductor_agree(
    found: Tensor, eager: Tensor, inductor: Tensor | None, verdict: str
) -> None:
    said = judge(found=values(found), held=held(eager, inductor))
    assert said.verdict == verdict
    assert bool(said.reason) == (verdict != EQUAL)


def test_each_output_may_be_as_eagers_or_as_inductors() -> None:
    eager, inductor = values(X, X), values(OFF, OFF)
    yardsticks = Yardsticks(eager, values(X.double(), X.double()), lambda: inductor)
    assert judge(values(OFF, X), yardsticks).verdict == AS_INDUCTOR
    assert judge(values(OFF + 1, X), yardsticks).verdict == WRONG


def test_what_eager_and_inductor_both_lose_is_not_wrong() -> None:
    lost = X.clone()
    lost[3] = torch.nan
    infinite = X.index_fill(0, torch.tensor([3]), torch.inf)
    for found, exact, verdict in (
        (infinite, infinite, UNSETTLED),
        (-infinite, infinite, WRONG),
        (X, infinite, WRONG),
        (X, X, UNSETTLED),
        (X.index_fill(0, torch.tensor([3]), 1000.0), X, WRONG),
    ):
        yardsticks = Yardsticks(
            values(lost, X), values(exact.double(), X.double()), lambda: values(lost, OFF)
        )
        assert judge(values(found, X + 0.05), yardsticks).verdict == verdict


def test_an_infinity_for_eagers_nan_is_not_wrong_where_terms_of_edges_overflow() -> None:
    lost, exact = X.clone(), X.double()
    lost[3], exact[3] = torch.nan, 1e39  # as of 2e39 - 1e39 in single precision
    infinite = X.index_fill(0, torch.tensor([3]), -torch.inf)
    other = infinite.index_fill(0, torch.tensor([4]), -torch.inf)
    for found, beyond, verdict in (
        (infinite, True, UNSETTLED),
        (infinite, False, WRONG),
        (other, True, WRONG),
        (X.index_fill(0, torch.tensor([3]), 1.0), True, WRONG),
    ):
        yardsticks = Yardsticks(values(lost), values(exact), lambda: values(lost), None, beyond)
        assert judge(values(found), yardsticks).verdict == verdict


@pytest.mark.parametrize(("number", "verdict"), [(1e38, UNSETTLED), (1e39, WRONG)])
def test_a_nan_for_eagers_infinity_is_not_wrong_where_both_lost_a_number(
    number: float, verdict: str
) -> None:
    """As of the deviation of the largest numbers, whose variance no single precision number holds."""
    lost, exact = X.clone(), X.double()
    lost[3], exact[3] = torch.inf, number
    found = X.index_fill(0, torch.tensor([3]), torch.nan)
    yardsticks = Yardsticks(values(lost), values(exact), lambda: values(lost), None, beyond=True)
    assert judge(values(found), yardsticks).verdict == verdict
    opposite = X.index_fill(0, torch.tensor([3]), -torch.inf)
    assert judge(values(opposite), yardsticks).verdict == WRONG


def test_what_is_said_against_a_result_tells_which_kinds_of_numbers_stand_for_which() -> None:
    eager, found = X.clone(), X.clone()
    eager[:5], eager[5:7] = torch.nan, torch.inf
    found[:3], found[3:5], found[5] = torch.inf, torch.nan, -torch.inf
    said = judge(values(found), held(eager, eager, beyond=True))
    assert said.verdict == WRONG
    assert said.reason.endswith(": 3 inf for nan, 1 -inf for inf, 1 a number for inf")
    assert " for " not in judge(values(OFF), held(X, X)).reason


def test_a_variance_in_float64_loses_no_mean_to_infinities_or_the_largest_numbers() -> None:
    top = torch.finfo(torch.float64).max
    x = torch.tensor([[math.inf, 1.0, 2.0], [top, top, -top], [1.0, 2.0, 3.0]], dtype=torch.float64)
    assert not torch.var_mean(x, 1)[1][:2].isfinite().any()
    with in_float64() as convert:
        spread, mean = torch.var_mean(convert(x), 1)
        deviation = torch.std(convert(x), 1)
    assert mean[0] == math.inf and torch.allclose(mean[1:], x.new_tensor([top / 3, 2.0]))
    assert spread[0].isnan() and spread[1] == math.inf and spread[2] == 1.0
    assert deviation[0].isnan() and deviation[1] == math.inf and deviation[2] == 1.0


def test_a_kernel_that_writes_to_an_input_is_wrong() -> None:
    own = replace(values(X), changed=(0,))
    assert judge(own, held(X, X)).verdict == WRONG


def test_a_result_in_an_inputs_memory_is_wrong_where_eagers_is_not() -> None:
    own = replace(values(X), shared=((0, 0),))
    assert judge(own, held(X, X)).verdict == WRONG


def test_a_result_that_is_missing_is_wrong() -> None:
    assert judge(values(X, X), held(X, X)).verdict == WRONG


LAYOUTS = [r.layout for r in ROUNDS]


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS)))
def test_a_layout_keeps_the_values_and_a_copy_the_layout(layout: str) -> None:
    x = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    made = laid_out(x, layout)
    again = copied(made)
    assert torch.equal(made, x[:1].expand_as(x) if layout == "expanded" else x)
    assert made.is_contiguous() == (layout in ("contiguous", "offset"))
    assert (again.stride(), again.storage_offset()) == (made.stride(), made.storage_offset())
    assert torch.equal(again, made) and again.data_ptr() != made.data_ptr()


def test_sizes_that_were_equal_stay_equal() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(5, 10), torch.rand(10, 3)
    for size in ("large", "wide", "one", "empty"):
        a, b = resized([x, y], size, generator)
        if size != "empty":
            assert a.shape[1] == b.shape[0]
        assert a.shape != x.shape
        assert set(a.flatten().tolist()) <= set(x.flatten().tolist())


def test_a_case_has_the_same_inputs_each_time() -> None:
    one, two = (next(variants(Case.named("add|float32|2"), "cpu")) for _ in range(2))
    assert all(
        torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(one.tensors, two.tensors, strict=True)
    )
    assert not one.finite


@pytest.mark.parametrize("operator", DIVISORS)
@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8"])
def test_edges_of_whole_numbers_leave_eager_an_answer_on_a_processor(
    operator: str, dtype: str
) -> None:
    inputs = next(variants(Case.named(f"{operator}|{dtype}|2"), "cpu"))
    assert inputs.values == "edge" and len(inputs.tensors) == 2
    ends = torch.iinfo(getattr(torch, dtype))
    for x in inputs.tensors:
        assert ends.max in x and (ends.min + 1 if ends.min else 1) in x
    assert inputs.call(*inputs.tensors)[0].shape == inputs.tensors[0].shape


def test_parts_are_all_operators_once_and_stay() -> None:
    names = list(operators())
    parts = [part(names, n, 3) for n in (1, 2, 3)]
    assert sorted(name for found in parts for name in found) == sorted(names)
    assert part(names[::2], 2, 3) == [name for name in names[::2] if name in parts[1]]


def test_every_round_comes_and_float32_comes_first() -> None:
    cells = [Cell("add", dtype) for dtype in reversed(DTYPES)]
    assert [cell.dtype for cell in ordered(cells, DTYPES)] == list(DTYPES)
    batches = batches_of(cells, len(ROUNDS), DTYPES)
    assert {case.number for case in batches[0]} == {1, 3}
    cases = [case for batch in batches for case in batch]
    assert len(cases) == len(set(cases)) == len(ROUNDS) + len(DTYPES) - 1
    assert {case.round for case in cases_of(Cell("add", "float32"), len(ROUNDS))} == set(ROUNDS)
    assert len(list(cases_of(Cell("add", "int8"), len(ROUNDS)))) == 1


def row(case: str, outcome: str, *statuses: str) -> dict[str, Any]:
    parts = [{"operators": "x", "status": s, "reason": "so", "family": ""} for s in statuses]
    return {
        "case": case,
        "outcome": outcome,
        "why": "",
        "parts": parts,
        "seconds": 1.0,
        "cpu_seconds": 2.0,
    }


def test_the_summary_counts_tasks_and_names_what_is_bad() -> None:
    rows = [
        row("a|float32|0", "covered", "covered", "covered"),
        row("a|float32|1", "partly covered", "covered", "left"),
        row("b|float32|0", "wrong", "covered"),
    ]
    said = summarise(rows)
    assert (said["cases"], said["operators"], said["wrong"], said["crash"]) == (3, 2, 1, 0)
    assert said["share_of_tasks_covered"] == 0.8
    assert (said["seconds"], said["cpu_seconds"]) == (3, 6)
    assert said["why_left"] == {"left: so": 1}
    assert by_operator(rows)["a"]["tasks"] == {"covered": 3, "left": 1}
    assert [r["case"] for r in bad(rows)] == ["b|float32|0"]
    assert set(BAD) < set(OUTCOMES)
    json.dumps(said)


def test_runs_on_parts_become_one_table(tmp_path: Path) -> None:
    own = {"machine": {}, "versions": versions()}
    facts: dict[str, Any] = {**own, "commit": "c", "rounds": 8, "schedules": 2}
    for number, name in enumerate("ab"):
        rows = Rows(tmp_path / name, {"target": "cpu", **facts})
        rows.add(row(f"{name}|float32|{number}", "wrong" if number else "covered", "covered"))
    kept = table.write([tmp_path / "a", tmp_path / "b"], tmp_path)["targets"]["cpu"]
    assert (kept["summary"]["cases"], kept["summary"]["wrong"]) == (2, 1)
    cells = [Cell(name, dtype) for name in operators() for dtype in dtypes_of(name, "cpu")]
    assert kept["summary"]["planned"] == sum(map(len, batches_of(cells, 8, DTYPES))) > 1000
    assert kept["cases"] == {"a|float32": "0:covered", "b|float32": "1:wrong"}
    assert [entry["case"] for entry in kept["bad"]] == ["b|float32|1"]
    Rows(tmp_path / "g", {"target": "cuda", **facts}).add(row("a|int8|3", "left", "left"))
    assert set(table.write([tmp_path / "g"], tmp_path)["targets"]) == {"cpu", "cuda"}
    other = {**facts, "versions": {"torch": "another"}}
    Rows(tmp_path / "v", {"target": "cpu", **other}).add(row("a|int8|3", "left", "left"))
    assert "planned" not in table.merged([tmp_path / "v"])["cpu"]["summary"]
    Rows(tmp_path / "o", {"target": "cpu", **facts, "commit": "d"})
    with pytest.raises(ValueError, match="another commit"):
        table.merged([tmp_path / "a", tmp_path / "o"])


def test_cases_that_a_later_commit_ran_again_say_what_they_had_been(tmp_path: Path) -> None:
    facts: dict[str, Any] = {
        "target": "cpu",
        "machine": {},
        "versions": {"torch": "t"},
        "rounds": 8,
        "schedules": 2,
    }
    whole = Rows(tmp_path / "whole", {**facts, "commit": "c"})
    for name, outcome in (("a|int8|0", "wrong"), ("a|int8|1", "covered"), ("b|int8|0", "crash")):
        whole.add(row(name, outcome, "covered"))
    later = Rows(tmp_path / "later", {**facts, "commit": "d"})
    later.add(row("a|int8|0", "covered", "covered"))
    later.add(row("a|int8|1", "covered", "covered"))
    found = table.merged([tmp_path / "whole"], [tmp_path / "later"])["cpu"]
    (again,) = found["again"]
    assert (found["commit"], again["commit"], again["cases"]) == ("c", "d", 2)
    assert [entry["case"] for entry in again["bad_before"]] == ["a|int8|0"]
    assert (found["summary"]["wrong"], found["summary"]["crash"]) == (0, 1)
    later.add(row("c|int8|0", "covered", "covered"))
    with pytest.raises(ValueError, match="c\\|int8\\|0"):
        table.merged([tmp_path / "whole"], [tmp_path / "later"])
    with pytest.raises(ValueError, match="nothing has a run on cpu"):
        table.merged([], [tmp_path / "later"])


def test_operators_of_a_file_are_taken_again_whole(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"target": "cpu", "machine": {}, "versions": {"torch": "t"}}
    facts |= {"rounds": 8, "schedules": 2}
    before = {"a|int8|0": "wrong", "a|int8|1": "left", "b|int8|0": "crash", "b|int8|2": "left"}
    after = {"a|int8|0": "covered", "a|int8|1": "covered"}
    for name, cases in (("before", before), ("again", after), ("both", {**before, **after})):
        rows = Rows(tmp_path / name, {**facts, "commit": name})
        for case, outcome in cases.items():
            rows.add(row(case, outcome, "left" if outcome == "left" else "covered"))
        if name == "again":
            rows.add(row("c|int8|0", "wrong", "covered"))  # not of the part that the file has
    table.write([tmp_path / "before"], tmp_path)
    found = table.write([], tmp_path, [tmp_path / "again"])["targets"]["cpu"]
    anew = table.merged([tmp_path / "both"])["cpu"]
    assert {**found, "commit": "both", "again": 0} == {**anew, "again": 0}
    (again,) = found["again"]
    assert (found["commit"], again["commit"], again["cases"]) == ("before", "again", 2)
    assert [entry["case"] for entry in again["bad_before"]] == ["a|int8|0"]
    part = Rows(tmp_path / "part", {**facts, "commit": "part"})
    part.add(row("b|int8|0", "covered", "covered"))
    with pytest.raises(ValueError, match="b\\|int8\\|2"):
        table.write([], tmp_path, [tmp_path / "part"])


def test_other_positions_of_equal_values_are_not_wrong(tmp_path: Path) -> None:
    program = Path(__file__).with_name("positions_process.py")
    root = str(program.parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, program, tmp_path],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.stdout.split() == ["covered", "wrong"], run.stderr
