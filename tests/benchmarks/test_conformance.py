"""The conformance run: cases run in workers under forced kernels, and what is wrong would be found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from benchmarks.conformance import case_run, parsed_headers, worker
from benchmarks.conformance.__main__ import visible
from benchmarks.conformance.case_run import Row, run_case
from benchmarks.conformance.cases import Case
from benchmarks.conformance.compare import WRONG, Finding, Values, Yardsticks, judge
from benchmarks.conformance.database import operators
from benchmarks.conformance.pool import Pool, Settings
from benchmarks.conformance.rows import Rows
from benchmarks.conformance.summary import bad, summarise
from benchmarks.store import ROOT
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
    given: dict[str, Any] = {"schedules": 1, "jobs": 2, "limit_s": 570, **more}
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
    for limit_s in (2.0, 20.0):  # more, where its worker had not begun in time
        rows = run_pool([["runs|forced|0", "sleeps|forced|1"]], DYING, limit_s=limit_s)
        if rows:
            break
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
