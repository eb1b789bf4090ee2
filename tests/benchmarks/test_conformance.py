"""The conformance run: a spread of operators is right under forced kernels, and what is wrong would be found."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import cache_dir

from benchmarks.conformance import case_run, parsed_headers, table, worker
from benchmarks.conformance.__main__ import visible
from benchmarks.conformance.case_run import Row, run_case
from benchmarks.conformance.cases import ROUNDS, Case, Cell, batches_of, cases_of, ordered, part
from benchmarks.conformance.compare import (
    AS_INDUCTOR,
    EQUAL,
    UNSETTLED,
    WRONG,
    Finding,
    Values,
    Yardsticks,
    judge,
)
from benchmarks.conformance.database import DTYPES, dtypes_of, operators
from benchmarks.conformance.pool import Pool, Settings
from benchmarks.conformance.rows import Rows
from benchmarks.conformance.samples import DIVISORS, copied, laid_out, resized, variants
from benchmarks.conformance.summary import BAD, OUTCOMES, bad, by_operator, summarise
from benchmarks.conformance.wide import in_float64
from benchmarks.store import ROOT, versions
from cuda_agent_backend.hook import forced
from sandbox.compile.toolchain import Toolchain, find_cxx

SPREAD = (
    "add|float32|1", "where|float32|3", "exp|float32|2", "floor_divide|int32|2", "bitwise_xor|int64|4",
    "sum|float32|6", "amax|float32|4", "argmax|float32|3", "var|float32|5", "cumsum|float32|1",
    "softmax.with_dtype|bfloat16|3", "nn.functional.layer_norm|float32|0", "nn.functional.gelu|float16|3",
    "cat|float32|1", "masked_fill|bool|2", "addmm|float32|1",
)  # fmt: skip


def run_pool(
    batches: Sequence[Sequence[str]], command: Sequence[str] | None = None, **more: Any
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    given: dict[str, Any] = {"schedules": 1, "jobs": 2, "limit_s": 300, **more}
    if command:
        given["command"] = command
    Pool(Settings("cpu", **given), found.append).run(batches)
    return found


def here(name: str, folder: Path) -> Row:
    """One case run in this process."""
    return run_case(Case.named(name), "cpu", 1, folder, lambda stage: None)


def test_to_read_the_database_freezes_no_flags_of_torch() -> None:
    assert operators.__wrapped__().keys() == operators().keys()
    assert not torch.backends.flags_frozen()


def test_a_spread_of_operators_is_right_under_forced_kernels() -> None:
    compiled_headers = {"TORCHINDUCTOR_CACHE_DIR": cache_dir()}  # which take longer than a case
    rows = run_pool([SPREAD[:8], SPREAD[8:]], environments=[compiled_headers])
    assert {row["case"] for row in rows} == set(SPREAD)
    assert [(row["case"], row["outcome"], row["why"]) for row in bad(rows)] == []
    covered = summarise(rows)["outcomes"]["covered"]
    assert covered >= 12, Counter((row["case"], row["outcome"], row["why"]) for row in rows)


def test_a_wrong_kernel_is_found_and_its_place_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = forced.generate

    def subtracting(analysis: Any, schedule: Any) -> Any:
        found: Any = generate(analysis, schedule)
        assert "ca::add(s0v0" in found.source
        return replace(found, source=found.source.replace("ca::add(s0v0", "ca::sub(s0v0"))

    monkeypatch.setattr(forced, "generate", subtracting)
    row = here("add|float32|0", tmp_path)
    assert row.outcome == "wrong"
    assert "output 0" in row.why and "elements" in row.why


def test_a_source_that_does_not_compile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = forced.generate
    monkeypatch.setattr(
        forced, "generate", lambda a, s: replace(generate(a, s), source="int main() { return x; }")
    )
    row = here("add|float32|0", tmp_path)
    assert row.outcome == "does not compile"
    assert "error:" in row.why


def test_a_fault_of_the_generator_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(regions: Any, count: int) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr(forced, "force", failing)
    row = here("add|float32|0", tmp_path)
    assert row.outcome == "bug"
    assert "planted" in row.why


DYING = (sys.executable, str(Path(__file__).with_name("dying_worker.py")))


def test_a_crash_is_named_and_the_rest_goes_on() -> None:
    names = ["runs|forced|0", "dies|forced|1", "leaves|forced, schedule 2|2", "runs|forced|3"]
    names += ["dies|eager|4", "dies|inductor|5"]
    rows = {row["case"]: row for row in run_pool([names], DYING)}
    assert {name: rows[name]["outcome"] for name in names} == {
        "runs|forced|0": "covered",
        "dies|forced|1": "crash",
        "leaves|forced, schedule 2|2": "crash",
        "runs|forced|3": "covered",
        "dies|eager|4": "eager fails",
        "dies|inductor|5": "inductor fails",
    }
    assert "SIGSEGV" in rows["dies|forced|1"]["why"]
    assert "schedule 2" in rows["leaves|forced, schedule 2|2"]["why"]


def test_a_worker_that_does_not_start_ends_the_run_with_its_last_words() -> None:
    command = (sys.executable, "-c", "raise SystemExit('no such thing')")
    with pytest.raises(RuntimeError, match=r"does not start.*no such thing"):
        run_pool([["runs|forced|0"]], command)


def test_a_case_that_brings_its_worker_down_afterwards_is_named() -> None:
    rows = {row["case"]: row for row in run_pool([["falls|forced|0"], ["runs|forced|1"]], DYING)}
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "falls|forced|0": "crash",
        "runs|forced|1": "covered",
    }


def test_a_case_that_does_not_end_is_stopped_and_named() -> None:
    rows = run_pool([["sleeps|forced|0", "runs|forced|1"]], DYING, case_s=1.0)
    assert {row["case"]: row["outcome"] for row in rows} == {
        "sleeps|forced|0": "hangs",
        "runs|forced|1": "covered",
    }


def test_workers_get_the_gpus_that_the_run_was_given() -> None:
    assert visible(None, 2) == ["0", "1"]
    assert visible("3, 5", 2) == ["3", "5"]
    assert visible("GPU-8a1f,GPU-77c0", 1) == ["GPU-8a1f"]
    with pytest.raises(SystemExit, match="no CUDA device"):
        visible("", 0)


def test_a_worker_has_done_what_is_done_once_before_its_first_case(tmp_path: Path) -> None:
    compiler = find_cxx()
    if not (isinstance(compiler, Toolchain) and compiler.path.name == "g++"):
        pytest.skip("only g++'s parsed headers are known, and the C++ compiler here is another")
    code = "import sys, pathlib; from benchmarks.conformance.worker import wake; "
    code += "wake('cpu', pathlib.Path(sys.argv[1])); "
    code += "from benchmarks.conformance.database import operators as all; "
    code += "from cuda_agent_backend.hook import forced; "
    code += "from torch._inductor import cpu_vec_isa as found; "
    code += "print(all.cache_info().currsize, found.valid_vec_isa_list.cache_info().currsize, "
    code += "(forced._include[0] / 'system.h.gch').is_file())"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1", "True"]


def test_headers_that_cannot_be_parsed_cost_time_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forced, "_cxx_flags", ())
    monkeypatch.setattr(forced, "_include", ())
    clang = Toolchain("c++", Path("/usr/bin/clang++"), "clang 18")
    monkeypatch.setattr(parsed_headers, "find_cxx", lambda: clang)
    worker.parse_ours(tmp_path)
    assert (forced._cxx_flags, forced._include) == ((), ())
    assert "parsed anew for each kernel" in capsys.readouterr().err
    found = parsed_headers.ParsedHeaders(tmp_path)
    monkeypatch.setattr(worker, "parse_headers", lambda folder: found)
    worker.parse_ours(tmp_path)
    assert (forced._cxx_flags, forced._include) == (found.flags, (tmp_path,))


TELLING = """
import json, os, sys
for line in sys.stdin:
    why = [os.environ["TMPDIR"], sys.argv[-1], os.environ["OMP_NUM_THREADS"]]
    for name in json.loads(line)["cases"]:
        print(json.dumps({"row": {"case": name, "outcome": "covered", "why": why, "parts": []}}))
    print(json.dumps({"done": True}), flush=True)
"""


def test_workers_share_what_inductor_parses_once_and_have_a_core_each() -> None:
    (told,) = run_pool([["a|float32|0"]], (sys.executable, "-c", TELLING))
    temporary, scratch, threads = told["why"]
    assert Path(temporary).parent == Path(scratch).parent and temporary != scratch
    assert threads == "1"


COUNTING = """
import json, sys, torch
from pathlib import Path
from benchmarks.conformance import case_run, forced_graphs
from benchmarks.conformance.cases import Case
from sandbox.launcher import ops

launch, compile_with, counts, graphs = ops._launch, forced_graphs.compile_with, [], []

def launching(*given):
    counts.append(torch.get_num_threads())
    launch(*given)

def compiling(*given):
    graphs.append(given)
    return compile_with(*given)

ops._launch, forced_graphs.compile_with = launching, compiling
row = case_run.run_case(Case.named("add|float32|1"), "cpu", 1, Path(sys.argv[1]), lambda stage: None)
as_before = ops._launch is launching
print(json.dumps([row.outcome, counts, len(graphs), as_before, row.cpu_seconds > 0]))
"""


def test_kernels_run_on_one_thread_and_on_four_in_a_graph_that_is_compiled_once(
    tmp_path: Path,
) -> None:
    """In a process of its own, as workers are: where the native operators are loaded, no Python sees a launch."""
    command = [sys.executable, "-c", COUNTING, str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == ["covered", [4, 1], 1, True, True]


def test_libraries_that_differ_on_four_threads_are_judged_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Values] = []

    def strict(values: Values, held: Yardsticks) -> Finding:
        judged.append(values)
        return Finding(WRONG, "other bits") if len(judged) == 1 else judge(values, held)

    monkeypatch.setattr(case_run, "judge", strict)
    assert here("select|float32|3", tmp_path).outcome == "no region"
    assert len(judged) == 2


def test_a_graph_that_raises_where_it_runs_once_more_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, judged, failed = case_run._Call.run, list[Values](), list[str]()

    def strict(values: Values, held: Yardsticks) -> Finding:
        judged.append(values)
        return Finding(WRONG, "other bits")

    def failing(self: Any, *given: Any) -> Values:
        if judged and not failed:
            failed.append("once")
            raise RuntimeError("planted")
        return run(self, *given)

    monkeypatch.setattr(case_run, "judge", strict)
    monkeypatch.setattr(case_run._Call, "run", failing)
    found = here("select|float32|3", tmp_path)
    assert (found.outcome, len(judged)) == ("raises", 1)
    assert "planted" in found.why


def test_operators_that_cannot_be_counted_are_not_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*given: Any) -> Any:
        raise NotImplementedError("planted")

    monkeypatch.setattr(case_run, "MANY", 0)
    monkeypatch.setattr(case_run._Counted, "__torch_dispatch__", failing)
    assert here("select|float32|3", tmp_path).size == "large"


def test_a_loop_of_many_operators_is_run_in_a_smaller_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here("select|float32|3", tmp_path).size == "large"
    monkeypatch.setattr(case_run, "MANY", 0)
    assert here("select|float32|3", tmp_path).size == "given"


def test_a_worker_begins_and_ends(tmp_path: Path) -> None:
    words = ["--target", "cpu", "--schedules", "1", "--scratch", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.conformance.worker", *words]
    told = json.dumps({"cases": []}) + "\n"
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, '{"done": true}\n'), done.stderr


def test_a_run_ends_cleanly_at_its_limit() -> None:
    rows = run_pool([["runs|forced|0", "sleeps|forced|1"]], DYING, limit_s=2.0)
    assert [row["case"] for row in rows] == ["runs|forced|0"]


def test_a_run_that_goes_on_repeats_nothing(tmp_path: Path) -> None:
    first = Rows(tmp_path, {"commit": "a"})
    first.add({"case": "add|float32|0", "outcome": "covered", "parts": []})
    with first.path.open("a") as file:
        file.write('{"case": "add|float32|1", "outc')  # the machine went down here
    again = Rows(tmp_path, {"commit": "a"})
    assert list(again.rows) == ["add|float32|0"]
    again.add({"case": "add|float32|1", "outcome": "covered", "parts": []})
    assert list(Rows(tmp_path, {"commit": "a"}).rows) == ["add|float32|0", "add|float32|1"]
    assert list(Rows(tmp_path, {"commit": "b"}).rows) == []
    assert [path.name for path in tmp_path.iterdir()] == ["cases.jsonl"]


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
    for found, verdict in ((infinite, UNSETTLED), (-infinite, WRONG), (X, WRONG)):
        yardsticks = Yardsticks(
            values(lost, X), values(infinite.double(), X.double()), lambda: values(lost, OFF)
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
    assert (found["commit"], found["again"]["commit"], found["again"]["cases"]) == ("c", "d", 2)
    assert [entry["case"] for entry in found["again"]["bad_before"]] == ["a|int8|0"]
    assert (found["summary"]["wrong"], found["summary"]["crash"]) == (0, 1)
    later.add(row("c|int8|0", "covered", "covered"))
    with pytest.raises(ValueError, match="c\\|int8\\|0"):
        table.merged([tmp_path / "whole"], [tmp_path / "later"])
    with pytest.raises(ValueError, match="no folder has a run on cpu"):
        table.merged([], [tmp_path / "later"])


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
