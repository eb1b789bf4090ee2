"""The whole-model benchmark: which cells there are, what a process says, what is made of it, and how a run goes on."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import models, store
from benchmarks.whole_models import contestant, process, race, reference
from benchmarks.whole_models.cells import AUTOTUNE, DEFAULT, KINDS, Cell, cells, part_of
from benchmarks.whole_models.contestant import EAGER, INDUCTOR, OURS, Request, Work, sampled
from benchmarks.whole_models.figures import AGAIN, errors, memory, summarise, times, undecided
from benchmarks.whole_models.process import Cut, Lost, Plan
from benchmarks.whole_models.registry import SUBJECTS
from benchmarks.whole_models.subject import build
from cuda_agent_backend.options import Options, parse
from cuda_agent_backend.search.budget import LEAST_SEARCH_S
from cuda_agent_backend.search.process_budget import ProcessBudget
from cuda_agent_backend.settings import Settings
from sandbox.compile.toolchain import Toolchain

LARGE = list(SUBJECTS["cuda"].values())
CELL = Cell("vit", "float32", "inference", DEFAULT, "cpu")


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


# One process.


@pytest.fixture
def large_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUBJECTS, "cpu", SUBJECTS["cuda"])


def request_of(tmp_path: Path, model: str, kind: str, backend: str = EAGER) -> Request:
    outputs = str(tmp_path / "outputs.pt")
    return Request("cpu", model, "float32", kind, DEFAULT, backend, outputs, toy=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("large_on_cpu")
def test_a_process_says_what_it_did_and_times_a_call_each_time_it_is_told(
    kind: str, tmp_path: Path
) -> None:
    said: list[dict[str, Any]] = []
    request = request_of(tmp_path, "bert_base", kind)
    contestant.serve(request, iter(["time\n", "time\n"]), said.append)
    ready, *samples = said
    assert ready["first_s"] > 0 and ready["held"] == {}
    assert len(samples) == 2 and all(one["device"] > 0 and one["wall"] > 0 for one in samples)
    found = torch.load(request.outputs, weights_only=True)
    assert len(found) == 1 if kind == "inference" else len(found) > 10
    assert all(isinstance(one, Tensor) and bool(one.isfinite().all()) for one in found)


@pytest.mark.usefixtures("large_on_cpu")
def test_a_step_changes_weights_after_its_gradients_are_kept(tmp_path: Path) -> None:
    request = request_of(tmp_path, "graph", "training")
    work, other = Work(request), Work(request)
    before = [p.detach().clone() for p in work.model.parameters()]
    _, found = work.first()
    assert not all(map(torch.equal, before, work.model.parameters()))
    assert all(p.grad is None for p in work.model.parameters())
    again = reference.outputs_of(other, other.inputs)
    assert len(found) == len(again)
    for one, two in zip(found, again, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(
    ("model", "kind"),
    [("mixture", "inference"), ("llama_decode", "inference"), ("gpt2_medium", "training")],
)
@pytest.mark.usefixtures("large_on_cpu")
def test_the_reference_is_closer_to_the_truth_than_eager(
    model: str, kind: str, tmp_path: Path
) -> None:
    work = Work(request_of(tmp_path, model, kind))
    eager = reference.outputs_of(work, work.inputs)
    how, exact = reference.exact(work)
    assert how == reference.WHOLE
    assert all(one.dtype == torch.float64 for one in exact)
    found = errors(eager, eager, eager, exact, how)
    assert found["accurate"] and 0.5 < found["error_ratio"] <= 1.0
    worst = max(float((a - b).norm() / b.norm()) for a, b in zip(eager, exact, strict=True))
    assert 1e-9 < worst < 1e-4


@pytest.mark.usefixtures("large_on_cpu")
def test_where_float64_has_no_room_the_first_sample_is_the_reference_or_else_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = reference.outputs_of

    def exact(model: str, full: int) -> tuple[str, list[Tensor], list[Tensor]]:
        left = iter(range(full))
        work = Work(request_of(tmp_path, model, "inference"))
        eager = real(work, work.inputs)

        def outputs_of(*args: Any) -> list[Tensor]:
            if next(left, None) is not None:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return real(*args)

        monkeypatch.setattr(reference, "outputs_of", outputs_of)
        return (*reference.exact(work), eager)

    how, found, eager = exact("bert_base", 1)
    assert how == reference.FIRST and len(found[0]) == 1 and len(eager[0]) == 2
    assert errors(eager, eager, eager, found, how)["accurate"]
    for model, full in (("bert_base", 2), ("graph", 1)):  # a graph's rows depend on each other
        how, found, eager = exact(model, full)
        assert how == reference.SINGLE and found[0].dtype == torch.float32


def test_a_sample_is_of_the_same_places_in_a_whole_and_in_its_first_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contestant, "SAMPLE", 64)
    whole = torch.arange(8 * 100.0).reshape(8, 10, 10)
    found = sampled(whole)
    assert found.shape == (8, 8) and len(found.unique()) == 64
    assert torch.equal(found[:1], sampled(whole[:1], 8))
    assert torch.equal(sampled(torch.arange(5.0)), torch.arange(5.0)[:, None])
    assert sampled(torch.tensor(3.0)).shape == ()


def test_cuda_graphs_are_on_both_sides_or_on_neither(tmp_path: Path) -> None:
    def options(mode: str) -> dict[str, Any]:
        request = Request("cuda", "vit", "float32", "inference", mode, OURS)
        return contestant.options_of(request)

    assert options(DEFAULT) == {"cuda_agent.cudagraphs": False, "cuda_agent.progress": "off"}
    tuned = options(AUTOTUNE)
    assert tuned["triton.cudagraphs"] and tuned["cuda_agent.cudagraphs"] and tuned["max_autotune"]
    without = options("max-autotune-no-cudagraphs")
    assert without["max_autotune"] and not without["cuda_agent.cudagraphs"]
    assert not without.get("triton.cudagraphs")


# A race.


class Told:
    """A process that takes a known time, and a round's own disturbance with all others."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls = seconds, 0

    def ask(self, command: str) -> dict[str, float]:
        assert command == "time"
        self.calls += 1
        return {"device": self.seconds * self.calls, "wall": 2 * self.seconds * self.calls}


def test_contestants_are_called_by_turns_and_speed_ups_are_within_rounds() -> None:
    told = {INDUCTOR: Told(0.3), OURS: Told(0.2), AGAIN: Told(0.3)}
    samples = race.by_turns(told, seconds=0.0)
    assert {one.calls for one in told.values()} == {race.LEAST_ROUNDS}
    found = times(samples)
    for name in ("speedup", "low", "wall_high"):
        assert found[name] == pytest.approx(1.5)
    assert found["quiet"]
    assert not times(race.by_turns({**told, AGAIN: Told(0.4)}, seconds=0.0))["quiet"]


class Drawn(Told):
    """A process whose calls differ from each other, and from the others' in their rounds."""

    def __init__(self, seconds: float, spread: float) -> None:
        super().__init__(seconds)
        self._spread, self._random = spread, random.Random(str(seconds))

    def ask(self, command: str) -> dict[str, float]:
        self.calls += 1
        seconds = self.seconds * self._random.uniform(1, 1 + self._spread)
        return {"device": seconds, "wall": seconds}


@pytest.mark.parametrize(("spread", "rounds"), [(0.001, race.FIRST_LOOK), (0.5, race.MOST_ROUNDS)])
def test_timing_ends_once_more_rounds_would_tell_nothing(spread: float, rounds: int) -> None:
    seconds = {INDUCTOR: 0.3, OURS: 0.2, AGAIN: 0.301}
    told = {name: Drawn(value, spread) for name, value in seconds.items()}
    samples = race.by_turns(told, seconds=1e9)
    assert {len(found) for found in samples["device"].values()} == {rounds}


def plan_of(tmp_path: Path) -> Plan:
    return Plan(tmp_path / "cell", tmp_path / "kept", tmp_path / "native", 7.0, 1.0)


def test_a_later_process_of_ours_has_no_time_and_finds_what_torch_kept_of_the_first(
    tmp_path: Path,
) -> None:
    settings = Settings.from_environment({"HOME": str(tmp_path)})

    def options(own: dict[str, Any], mode: str) -> Options:
        request = Request("cuda", "vit", "float32", "inference", mode, OURS, options=own)
        return parse(settings, None, contestant.options_of(request))

    first, later = race.options_of(plan_of(tmp_path))
    for mode in (DEFAULT, AUTOTUNE):
        cold, warm = (options(own, mode) for own in (first, later))
        assert cold.salt() == warm.salt() and cold.inductor == warm.inductor
        assert cold.process_budget_s == 28.0
        left = ProcessBudget().grant(warm.budget_s, warm.process_budget_s)
        assert left < LEAST_SEARCH_S
        cached = options({**first, "search": "cached"}, mode)
        assert cached.salt() != cold.salt()


def test_only_the_default_mode_begins_with_an_empty_kernel_cache(tmp_path: Path) -> None:
    plan, cell = plan_of(tmp_path), Cell("vit", "float32", "inference", DEFAULT, "cuda")
    tuned = replace(cell, mode=AUTOTUNE)
    assert race.begin_search(tuned, plan) == race.EMPTY
    plan.kernels.mkdir(parents=True)
    (plan.search / "kernels-durations.json").write_text("{}")
    assert race.begin_search(tuned, plan) == race.KEPT
    assert race.begin_search(cell, plan) == race.EMPTY
    assert list(plan.search.iterdir()) == []


def test_a_reference_is_computed_once_for_all_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "played.py").write_text(
        "import json, sys, torch; out = json.load(open(sys.argv[1]))['outputs'];"
        " torch.save({'how': 'x'}, out)"
    )
    monkeypatch.setattr(race, "REFERENCE", "played")
    plan = replace(plan_of(tmp_path), deadline=time.monotonic() + 300.0)
    plan.folder.mkdir()
    environment = {**process.environment(plan, INDUCTOR, "cpu"), "PYTHONPATH": str(tmp_path)}
    request = request_of(tmp_path, "vit", "inference")
    assert race.reference_of(request, environment, plan) == {"how": "x"}
    (tmp_path / "played.py").write_text("raise SystemExit('computed again')")
    assert race.reference_of(request, environment, plan) == {"how": "x"}
    with pytest.raises(Lost, match="computed again"):
        race.reference_of(request, environment, replace(plan, kept=tmp_path / "other"))


def test_both_compilers_have_tritons_assembler_on_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    monkeypatch.setattr(process, "find_triton", lambda: Toolchain("triton", Path("/t"), "3"))
    plan = plan_of(tmp_path)

    def assembler(target: str) -> set[str | None]:
        names = (INDUCTOR, OURS)
        return {process.environment(plan, n, target).get("TRITON_PTXAS_PATH") for n in names}

    assert assembler("cuda") == {"/t/backends/nvidia/bin/ptxas"}
    assert assembler("cpu") == {None}
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/own")
    assert assembler("cuda") == {"/own"}


def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Any:
    (tmp_path / "played.py").write_text(text)
    monkeypatch.setattr(process, "CONTESTANT", "played")
    plan = Plan(tmp_path, tmp_path, tmp_path, 1.0, 1.0, time.monotonic() + 300.0)
    environment = {**process.environment(plan, INDUCTOR, "cpu"), "PYTHONPATH": str(tmp_path)}
    return process.Process("one", request_of(tmp_path, "vit", "inference"), environment, plan)


def test_a_process_that_dies_says_why_and_one_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = "raise SystemExit('CUDA out of memory. Tried to allocate 2.00 GiB' + '\\nmore' * 30)"
    with played(tmp_path, monkeypatch, dies) as one, pytest.raises(Lost) as lost:
        one.ready()
    assert lost.value.full and "ended with status 1" in str(lost.value)
    assert "Tried to allocate" in str(lost.value)
    hangs = "import time; print('{\"first_s\": 1}', flush=True); time.sleep(600)"
    monkeypatch.setattr(process, "END_S", 0.1)
    with played(tmp_path, monkeypatch, hangs) as one:
        assert one.ready() == {"first_s": 1}
        with pytest.raises(Lost, match="no answer after 1 s"):
            one.ask("time", 1.0)
    assert one._process.returncode == -9
    with played(tmp_path, monkeypatch, hangs) as one, pytest.raises(Cut):
        one.ready()
        one._deadline = time.monotonic() + 0.5
        one.ask("time", 100.0)


@pytest.mark.parametrize("full", [True, False])
def test_without_room_for_a_second_process_the_first_is_its_own_control(full: bool) -> None:
    class Second(ExitStack):
        def ready(self) -> Any:
            raise Lost("inductor_again", "CUDA out of memory" if full else "Segmentation fault")

    first: Any = object()
    with ExitStack() as stack:
        if full:
            found = race._again(stack, Second, first, {"first_s": 9.0, "held": {}})  # type: ignore[arg-type]
            assert found == (first, {"first_s": None, "held": {}})
        else:
            with pytest.raises(Lost):
                race._again(stack, Second, first, {})  # type: ignore[arg-type]


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
    results: store.Results, failing: str = "", limit_s: float = 1e9, modes: Any = (DEFAULT,)
) -> list[str]:
    ran: list[str] = []

    def one(cell: Cell, deadline: float) -> store.Facts:
        ran.append(cell.model)
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
    assert run(results, limit_s=60.0) == []
    assert len(run(results, limit_s=90.0)) == 3


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
    found = [Cell("vit", "float32", kind, DEFAULT, "cuda") for kind in ("training", "inference")]
    for cell, seconds in zip(found, (500.0, 10.0), strict=True):
        other = replace(cell, model="clip")
        done = {**FACTS, "cell": asdict(other), "commit": "abc", "wall_seconds": seconds}
        results.write({**results.done(keep=True), other.name: done})
    ran: list[str] = []

    def one(cell: Cell, deadline: float) -> store.Facts:
        ran.append(cell.kind)
        return {**FACTS, "cell": asdict(cell)}

    models.collect(models.Wanted(found, 100.0, keep=False), results, one, least_s=60.0)
    assert ran == ["inference"]


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
