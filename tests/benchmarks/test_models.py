"""The whole-model benchmark: which cells there are, what is made of what they say, and how a run goes on."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import models, store
from benchmarks.whole_models import reference
from benchmarks.whole_models.cells import AUTOTUNE, DEFAULT, KINDS, Cell, cells, part_of
from benchmarks.whole_models.figures import errors, memory, summarise, undecided
from benchmarks.whole_models.process import Cut, Lost
from benchmarks.whole_models.registry import SUBJECTS
from benchmarks.whole_models.subject import build

LARGE = list(SUBJECTS["cuda"].values())


def every() -> list[Cell]:
    return cells(LARGE, "cuda", KINDS, (DEFAULT, AUTOTUNE), ("bfloat16", "float32"))


def test_every_model_has_its_cells_and_parts_are_all_of_them_once() -> None:
    found = every()
    only_decode = sum(subject.kinds == ("inference",) for subject in LARGE)
    assert len(found) == 2 * 2 * (2 * len(LARGE) - only_decode)
    assert len({cell.name for cell in found}) == len(found)
    assert {cell.model for cell in found[: len(LARGE)]} == {subject.name for subject in LARGE}
    parts = [part_of(found, f"{k}/3") for k in (1, 2, 3)]
    assert sorted(itertools.chain(*parts), key=found.index) == found


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/"])
def test_a_wrong_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not K/N"):
        part_of(every(), text)


def test_cells_in_the_default_mode_come_first_in_whatever_order_modes_are_given() -> None:
    args = models.parser().parse_args(["--target", "cuda", "--modes", AUTOTUNE, DEFAULT])
    modes = [cell.mode for cell in models.wanted_cells(args)]
    assert modes == sorted(modes, key=[DEFAULT, AUTOTUNE].index)


@pytest.mark.parametrize(
    ("only", "many"),
    [("bert_base", 8), ("bert_base training", 4), ("bert_base float32 training default", 1)],
)
def test_only_whole_words_of_a_name_choose_a_cell(only: str, many: int) -> None:
    args = models.parser().parse_args(["--target", "cuda", "--only", only])
    found = models.wanted_cells(args)
    assert len(found) == many and {cell.model for cell in found} == {"bert_base"}


def test_what_no_cuda_graph_can_hold_is_left_out_with_its_reason() -> None:
    left = [cell for cell in every() if cell.left_out]
    assert {cell.name for cell in left} == {f"mixture float32 {kind} {AUTOTUNE}" for kind in KINDS}
    assert not replace(left[0], mode="max-autotune-no-cudagraphs").left_out


@pytest.mark.parametrize(("dtype", "on_the_host"), [("float32", True), ("bfloat16", False)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_only_in_float32_are_experts_multiplied_by_an_operator_that_reads_on_the_host(
    dtype: str, on_the_host: bool
) -> None:
    made, code = build(SUBJECTS["cuda"]["mixture"], "cpu", getattr(torch, dtype), toy=True), []

    def kept(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        code.append(str(graph.code))
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(made.model, backend=kept)(*made.inputs)
    assert ("grouped_mm_fallback" in "".join(code)) is on_the_host
    # Inductor would leave an operator with this tag out of a CUDA graph, and could then be measured.
    fallback = torch.ops.transformers.grouped_mm_fallback.default
    assert torch._C.Tag.cudagraph_unsafe not in fallback.tags


def test_cells_on_cpu_have_the_names_that_committed_results_have() -> None:
    args = models.parser().parse_args(["--target", "cpu"])
    committed = json.loads((store.FOLDER / "cpu-models.json").read_text())["samples"]
    assert {cell.name for cell in models.wanted_cells(args)} == set(committed)
    assert models.name_of(args, models.gpu_of(args)) == "cpu-models"
    part = models.parser().parse_args(["--target", "cuda", "--part", "2/8", "--time-limit", "60"])
    assert models.name_of(part, "NVIDIA H100 80GB HBM3") == "h100-models-2of8"
    assert part.limit == 60.0


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("", "cuda"),
    ],
)
def test_a_file_is_named_after_the_gpu(gpu: str, name: str, tmp_path: Path) -> None:
    args = models.parser().parse_args(["--target", "cuda", "--toy"])
    assert models.name_of(args, gpu) == f"{name}-models-toy"
    part = tmp_path / "part.json"
    part.write_text(json.dumps({"machine": {"gpu": gpu}}))
    joined = models.parser().parse_args(["--target", "cuda", "--merge", str(part)])
    assert models.gpu_of(joined) == gpu


@pytest.mark.parametrize(("target", "name"), [("cuda", "h200-models"), ("cpu", "cpu-models")])
def test_a_joined_file_is_named_after_what_its_cells_ran_on(
    target: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`--target` need not be said again, and a machine with a GPU measures on its processor as well."""
    cell = {"dtype": "float32", "kind": "inference", "mode": DEFAULT, "target": target}
    samples = {"a": {"failed": "x"}, "b": {**FACTS, "cell": cell}}
    head = {"machine": {"gpu": "NVIDIA H200"}, "versions": {}, "commit": "abc"}
    part = tmp_path / "part.json"
    part.write_text(json.dumps({**head, "samples": samples}))
    words = ["models", "--merge", str(part), "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    assert models.main() == 0
    assert [file.stem for file in tmp_path.glob("*-models.json")] == [name]


@pytest.mark.parametrize("second", [{}, {"target": "cuda"}, {"target": "cpu"}])
def test_parts_in_which_every_cell_failed_are_never_taken_for_those_of_another_target(
    second: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = {"machine": {"gpu": "NVIDIA H200"}, "versions": {}, "commit": "abc"}
    parts = [tmp_path / f"part{number}.json" for number in range(2)]
    for part, more in zip(parts, ({}, second), strict=True):
        part.write_text(json.dumps({**head, **more, "samples": {"a": {"failed": models.CUT}}}))
    if second == {"target": "cpu"}:
        content = json.loads(parts[0].read_text())
        parts[0].write_text(json.dumps({**content, "target": "cuda"}))
    words = ["models", "--merge", *map(str, parts), "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    status = models.main()
    written = {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("*-models.json")}
    if second != {"target": "cuda"}:
        assert (status, written) == (2, {}) and "not joined" in capsys.readouterr().err
        return
    assert status == 0 and set(written) == {"h200-models"}
    assert written["h200-models"]["target"] == "cuda"


def test_a_file_says_what_its_cells_are_to_run_on(results: store.Results, tmp_path: Path) -> None:
    args = models.parser().parse_args(["--target", "cpu", "--folder", str(tmp_path)])
    made = models.results_of(args)
    made.write({"a": {"failed": "x"}})
    assert models.target_of([made.path]) == "cpu"


# Figures.


def test_errors_are_told_as_multiples_of_eagers() -> None:
    exact = [torch.randn(400, dtype=torch.float64)]
    noise = 1e-3 * torch.randn(400, dtype=torch.float64)
    near, far, plain = ((exact[0] + f * noise).float() for f in (1.0, 5.0, 1.2))
    found = errors([far], [plain], [near], exact, reference.WHOLE)
    assert not found["accurate"] and found["error_ratio"] > 4 > found["inductor_error_ratio"]
    assert found["reference"] == reference.WHOLE
    same = errors([far], [far], [near], exact, reference.WHOLE)
    assert same["accurate"] and same["as_inductor"]
    other = errors([near[:10]], [plain], [near], exact, reference.WHOLE)
    assert not other["accurate"] and "output 0" in other["wrong"]


def test_memory_is_compared_in_steady_calls_by_what_a_replay_still_holds() -> None:
    held = [{"held": {"allocated": value, "reserved": 2 * value + 100}} for value in (300, 200)]
    assert memory(*held, DEFAULT) == {"memory_ratio": 1.5, "memory_counted": "allocated"}
    assert memory(*held, AUTOTUNE) == {"memory_ratio": 1.4, "memory_counted": "reserved"}
    without = memory(*held, "max-autotune-no-cudagraphs")
    assert without["memory_counted"] == "allocated"
    assert memory({"held": {}}, {"held": {}}, DEFAULT)["memory_ratio"] is None


def graph(acceptance: store.Facts, *regions: tuple[str, str]) -> store.Facts:
    told = [{"status": status, "reason": reason} for status, reason in regions]
    return {"kind": "forward", "digest": "d", "acceptance": acceptance, "regions": told}


def test_graphs_that_were_not_searched_or_measured_to_the_end_are_named() -> None:
    decided = {"use": [], "reason": "the whole graph is not faster with it"}
    done = graph(decided, ("hit", ""), ("dropped", decided["reason"]), ("negative", "nothing wins"))
    assert undecided([done, graph({}, ("negative", "nothing wins"), ("left", "odd"))]) == []
    unmeasured = graph({}, ("dropped", "not measured"), ("dropped", "not measured"))
    unsearched = graph(decided, ("hit", ""), ("miss", "no record"))
    first, second = undecided([done, unmeasured, unsearched])
    assert (first["used"], first["undecided"], first["reasons"]) == (0, 2, ["not measured"])
    assert (second["used"], second["undecided"], second["reasons"]) == (1, 1, ["no record"])


def test_nobody_takes_inductor_against_inductor_for_a_result() -> None:
    base = {"speedup": 1.0, "low": 1.0, "high": 1.0, "accurate": True, "quiet": True}
    alone = {**base, "promoted": 0, "eager_layouts": 0, "replayed": 0, "undecided": []}
    found = summarise(
        {
            "alone": alone,
            "late": {**alone, "undecided": [{"kind": "forward"}]},
            "layouts": {**alone, "eager_layouts": 1},
            "kernels": {**alone, "promoted": 3},
            "unknown": base,
        }
    )
    assert found["undecided"] == ["late"]
    assert found["inductor_on_both_sides"] == ["alone", "late"]


def test_the_summary_names_what_misses_a_target() -> None:
    good = {"speedup": 1.2, "low": 1.1, "high": 1.3, "accurate": True, "quiet": True}
    good |= {"cell": {"dtype": "bfloat16", "kind": "inference", "mode": DEFAULT}}
    found = summarise(
        {
            "good": good,
            "slow": {**good, "speedup": 0.9, "low": 0.85, "high": 0.95, "memory_ratio": 1.01},
            "wrong": {**good, "accurate": False, "memory_ratio": 1.5, "quiet": False},
            "broken": {"failed": "x", "memory_full": True},
        }
    )
    assert (found["slower"], found["less_accurate"]) == (["slow"], ["wrong"])
    assert (found["more_memory"], found["failed"]) == (["wrong"], ["broken"])
    (group,) = found["groups"].values()
    assert group["models"] == found["models"] == 3
    assert math.isclose(group["geomean"], (1.2 * 0.9 * 1.2) ** (1 / 3))


# A run.


FACTS = {"speedup": 1.1, "low": 1.06, "high": 1.2, "accurate": True, "quiet": True}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[store.Results]:
    monkeypatch.setattr(store, "machine", lambda: {"cpu": "one", "load": [0.0]})
    for module in (store, models):
        monkeypatch.setattr(module, "commit", lambda: "abc")
    yield store.Results("some", summarise, tmp_path)


def run(
    results: store.Results,
    failing: str = "",
    limit_s: float = 1e9,
    modes: Any = (DEFAULT,),
    cut: str = "",
) -> list[str]:
    ran: list[str] = []

    def one(cell: Cell, deadline: float) -> store.Facts:
        ran.append(cell.model)
        if cell.model == cut:
            raise Cut
        if cell.model == failing:
            raise Lost("cold", "CUDA out of memory")
        return {**FACTS, "cell": asdict(cell)}

    found = cells(LARGE[:3], "cuda", ("inference",), modes, ("bfloat16",))
    models.collect(models.Wanted(found, limit_s, keep=False), results, one, least_s=60.0)
    return ran


def test_a_cell_that_failed_is_written_and_run_again_and_others_are_not(
    results: store.Results,
) -> None:
    names = [subject.name for subject in LARGE[:3]]
    assert run(results, failing=names[1]) == names
    found = json.loads(results.path.read_text())
    assert found["summary"]["models"] == 2 and len(found["summary"]["failed"]) == 1
    assert run(results) == [names[1]]
    assert run(results) == []
    assert not json.loads(results.path.read_text())["summary"]["failed"]


def test_what_failed_is_run_again_after_what_was_never_tried(results: store.Results) -> None:
    first, *others = [subject.name for subject in LARGE[:3]]
    run(results, failing=first)
    assert run(results, modes=(DEFAULT, AUTOTUNE)) == [first, *others, first]


def test_what_was_cut_is_in_the_file_and_comes_first_in_the_next_run_but_not_forever(
    results: store.Results,
) -> None:
    first, second, third = [subject.name for subject in LARGE[:3]]
    assert run(results, cut=second) == [first, second]
    found = json.loads(results.path.read_text())
    (name,) = found["summary"]["failed"]
    assert found["samples"][name]["failed"] == models.CUT and second in name
    assert run(results, cut=second) == [second]
    assert run(results, cut=second) == [third, second]
    assert run(results) == [second] and run(results) == []
    assert not json.loads(results.path.read_text())["summary"]["failed"]


def test_what_is_left_out_has_its_reason_in_the_file_and_counts_as_nothing_else(
    results: store.Results,
) -> None:
    cell = Cell("mixture", "float32", "inference", AUTOTUNE, "cuda")
    good = replace(cell, mode=DEFAULT)

    def one(cell: Cell, deadline: float) -> store.Facts:
        assert not cell.left_out
        return {**FACTS, "cell": asdict(cell)}

    for _ in range(2):
        models.collect(models.Wanted([good, cell], 1e9, keep=False), results, one, least_s=0.0)
        summary = json.loads(results.path.read_text())["summary"]
        assert summary["left_out"] == {cell.name: cell.left_out}
        assert summary["models"] == 1 and not summary["failed"]


def test_no_cell_is_begun_that_would_not_end_in_time(results: store.Results) -> None:
    """But for a run's first one."""
    first, second, third = [subject.name for subject in LARGE[:3]]
    # A cell that failed says nothing of how long others take.
    assert run(results, limit_s=60.0, failing=first) == [first]
    assert run(results, limit_s=-1.0) == []
    assert run(results, limit_s=90.0) == [second, third, first]


def test_cells_that_take_nearly_all_of_a_runs_time_are_measured_one_by_one(
    results: store.Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(models.time, "monotonic", lambda: now[0])
    found = cells(LARGE[:3], "cuda", ("inference",), (DEFAULT,), ("bfloat16",))
    ran: list[str] = []

    def one(cell: Cell, deadline: float) -> store.Facts:
        ran.append(cell.model)
        now[0] += 500.0
        return {**FACTS, "cell": asdict(cell)}

    for done in (1, 2, 3):
        models.collect(models.Wanted(found, 560.0, keep=False), results, one, least_s=60.0)
        assert ran == [cell.model for cell in found[:done]]


def test_cells_that_are_cut_or_fail_again_and_again_come_by_turns(results: store.Results) -> None:
    first, second, third = [subject.name for subject in LARGE[:3]]
    for cut in (first, first, second, second):
        run(results, cut=cut, failing=third)
    assert run(results, cut=first, failing=third) == [third, first]
    assert run(results, cut=third) == [third]
    assert run(results, cut=second) == [second]
    assert run(results) == [third, first, second]


def test_a_runs_time_begins_with_its_process_and_has_room_to_end_in(
    results: store.Results,
) -> None:
    cell = Cell("vit", "float32", "inference", DEFAULT, "cuda")
    args = models.parser().parse_args(["--target", "cuda", "--time-limit", "570"])
    wanted = models.wanted_of(args, [cell], began=1000.0)
    assert wanted.deadline == 1570.0 - models.ENDING_S
    deadlines: list[float] = []

    def one(cell: Cell, deadline: float) -> store.Facts:
        deadlines.append(deadline)
        return {**FACTS, "cell": asdict(cell)}

    late = replace(wanted, started=time.monotonic() - 1000.0)
    models.collect(late, results, one, least_s=0.0)
    assert deadlines == []
    models.collect(replace(late, limit_s=1e9), results, one, least_s=0.0)
    assert deadlines == [late.started + 1e9]


def test_what_a_cell_needs_is_what_others_of_its_kind_and_mode_took() -> None:
    cell = Cell("vit", "float32", "training", DEFAULT, "cuda")

    def took(kind: str, mode: str, seconds: float) -> store.Facts:
        return {"cell": {"kind": kind, "mode": mode}, "wall_seconds": seconds}

    samples = {"a": took("inference", DEFAULT, 900.0), "b": took("training", AUTOTUNE, 800.0)}
    samples["c"] = {"failed": "x", "wall_seconds": 700.0}
    assert models.needs_s(cell, samples, 100.0) == pytest.approx(115.0)
    samples |= {"d": took("training", DEFAULT, 40.0), "e": took("training", DEFAULT, 20.0)}
    assert models.needs_s(cell, samples, 100.0) == pytest.approx(46.0)


def test_a_cell_that_still_fits_is_run_where_another_kind_does_not(results: store.Results) -> None:
    kinds = ("inference", "training", "inference")
    found = [
        Cell(model, "float32", kind, DEFAULT, "cuda")
        for model, kind in zip(("first", "vit", "vit"), kinds, strict=True)
    ]
    for cell, seconds in zip(found[1:], (500.0, 10.0), strict=True):
        other = replace(cell, model="clip")
        done = {**FACTS, "cell": asdict(other), "commit": "abc", "wall_seconds": seconds}
        results.write({**results.done(keep=True), other.name: done})
    ran: list[str] = []

    def one(cell: Cell, deadline: float) -> store.Facts:
        ran.append(f"{cell.model} {cell.kind}")
        return {**FACTS, "cell": asdict(cell)}

    models.collect(models.Wanted(found, 100.0, keep=False), results, one, least_s=60.0)
    assert ran == ["first inference", "vit inference"]


def test_a_second_process_with_the_same_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--folder", str(tmp_path / "a"), "--build-dir", str(tmp_path / "b")]
    words = ["models", "--target", "cpu", "--toy", *folders]
    ran: list[list[Cell]] = []

    def run_cells(args: Any, found: list[Cell], *_: Any) -> dict[str, store.Facts]:
        ran.append(found)
        monkeypatch.setattr("sys.argv", words)
        assert models.main() == 2
        monkeypatch.setattr("sys.argv", [*words, "--folder", str(tmp_path / "c")])
        assert models.main() == 2, "the same caches"
        return {}

    monkeypatch.setattr(models, "run_cells", run_cells)
    monkeypatch.setattr("sys.argv", words)
    assert models.main() == 0 and len(ran) == 1
    said = capsys.readouterr().err
    assert str(tmp_path / "a" / "cpu-models-toy.json") in said and "--part" in said
    assert str(tmp_path / "b" / "cpu-models-toy") in said
    with store.only_one(tmp_path / "c" / "cpu-models-toy.json"):
        assert models.main() == 2 and len(ran) == 1


def test_parts_become_one_file(tmp_path: Path, results: store.Results) -> None:
    files = []
    for number, samples in enumerate(({"a": FACTS, "b": {"failed": "x"}}, {"b": FACTS})):
        part = store.Results(f"part{number}", summarise, tmp_path)
        part.write({name: dict(facts) for name, facts in samples.items()})
        files.append(part.path)
    models.merge(files, results)
    found = json.loads(results.path.read_text())
    assert set(found["samples"]) == {"a", "b"} and found["summary"]["failed"] == []
    other = json.loads(files[1].read_text())
    files[1].write_text(json.dumps({**other, "machine": {"cpu": "one", "system": "Linux 6.8"}}))
    merged = models.merge(files, results)
    assert merged["b"]["machine"] == {"system": "Linux 6.8"} and "machine" not in merged["a"]
    files[1].write_text(json.dumps({**other, "machine": {"cpu": "two"}}))
    with pytest.raises(ValueError, match="different machines"):
        models.merge(files, results)
