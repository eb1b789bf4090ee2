"""A cell of the whole-model benchmark: what each of its processes does and says, and how they are run by turns."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.whole_models import contestant, process, race, reference
from benchmarks.whole_models.cells import AUTOTUNE, DEFAULT, KINDS, Cell
from benchmarks.whole_models.contestant import EAGER, INDUCTOR, OURS, Request, Work, sampled
from benchmarks.whole_models.figures import AGAIN, errors, times
from benchmarks.whole_models.process import Cut, Lost, Plan
from benchmarks.whole_models.registry import SUBJECTS
from benchmarks.whole_models.subject import Subject, build
from cuda_agent_backend.options import Options, parse
from cuda_agent_backend.search.budget import LEAST_SEARCH_S
from cuda_agent_backend.search.process_budget import ProcessBudget
from cuda_agent_backend.settings import Settings
from sandbox.compile.toolchain import Toolchain

LARGE = list(SUBJECTS["cuda"].values())


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
    contestant.serve(request, iter(["go\n", "time\n", "time\n"]), said.append)
    ready, *samples = said
    assert ready["first_s"] > 0 and ready["held"] == {}
    assert len(samples) == 2 and all(one["device"] > 0 and one["wall"] > 0 for one in samples)
    found = torch.load(request.outputs, weights_only=True)
    assert len(found) == 1 if kind == "inference" else len(found) > 10
    assert all(isinstance(one, Tensor) and bool(one.isfinite().all()) for one in found)


@pytest.mark.usefixtures("large_on_cpu")
def test_a_process_builds_nothing_before_it_is_told_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contestant, "Work", None)
    said: list[dict[str, Any]] = []
    contestant.serve(request_of(tmp_path, "bert_base", "inference"), iter([]), said.append)
    assert said == []


@pytest.mark.parametrize("subject", [pytest.param(s, id=s.name) for s in LARGE])
def test_what_a_process_imports_before_its_turn_takes_no_device_and_changes_no_numbers(
    subject: Subject, tmp_path: Path
) -> None:
    before = build(subject, "cpu", torch.float32, toy=True)
    contestant.load(Request("cuda", subject.name, "float32", "inference", DEFAULT, OURS))
    after = build(subject, "cpu", torch.float32, toy=True)
    for one, two in zip(before.model.parameters(), after.model.parameters(), strict=True):
        assert one.device.type == "cpu" and torch.equal(one, two)


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


class Killed(BaseException):
    """This process ends at once."""


@pytest.mark.parametrize("mode", [DEFAULT, AUTOTUNE])
@pytest.mark.parametrize(
    ("ends", "goes_on"), [(Cut(), True), (Killed(), True), (Lost("x", ""), False), (None, False)]
)
def test_a_cell_that_was_cut_goes_on_with_what_its_search_had_found(
    ends: BaseException | None, goes_on: bool, mode: str, tmp_path: Path
) -> None:
    plan, cell = plan_of(tmp_path), Cell("vit", "float32", "inference", mode, "cuda")
    other = replace(cell, mode="max-autotune-no-cudagraphs")
    with pytest.raises(type(ends)) if ends else nullcontext(), race.under_way(cell, plan) as began:
        assert began == race.EMPTY
        (plan.kernels / "found").mkdir(parents=True)
        if ends:
            raise ends
    with race.under_way(other, plan) as began:
        assert began == race.KEPT, "it was another cell's search that was cut"
    found = {DEFAULT: race.EMPTY, AUTOTUNE: race.KEPT}[mode]
    with race.under_way(cell, plan) as began:
        assert began == (race.CUT_BEFORE if goes_on else found)
        assert (plan.kernels / "found").exists() == (began != race.EMPTY)
    with race.under_way(cell, plan) as began:
        assert began == found, "it has ended since"


def test_a_cell_whose_search_was_emptied_since_does_not_say_that_it_goes_on(tmp_path: Path) -> None:
    plan, cell = plan_of(tmp_path), Cell("vit", "float32", "inference", DEFAULT, "cuda")
    tuned = replace(cell, mode=AUTOTUNE)
    with pytest.raises(Cut), race.under_way(tuned, plan):
        plan.kernels.mkdir(parents=True)
        raise Cut
    with race.under_way(cell, plan) as began:
        assert began == race.EMPTY
        plan.kernels.mkdir(parents=True)
    with race.under_way(tuned, plan) as began:
        assert began == race.KEPT


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


def test_once_the_time_is_up_a_process_is_given_none_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    hangs = "import time; print('{}', flush=True); time.sleep(600)"
    for late in (False, True):
        one = played(tmp_path, monkeypatch, hangs)
        one.ready()
        wait = one._process.wait

        def noted(timeout: float | None = None, wait: Any = wait) -> int:
            waited.append(timeout or 0.0)
            return int(wait(0.1 if timeout else None))

        monkeypatch.setattr(one._process, "wait", noted)
        if late:
            one._deadline = time.monotonic()
        one.close()
        assert one._process.returncode == -9
    assert waited[::2] == [process.END_S, process.LATE_END_S]


class Step:
    """A process that notes what happens to it. says: its answer, or how it is lost."""

    def __init__(self, name: str, events: list[str], says: Any) -> None:
        self.name, self._events, self._says = name, events, says
        events.append(f"start {name}")

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if f"close {self.name}" not in self._events:
            self._events.append(f"close {self.name}")

    def tell(self, command: str) -> None:
        self._events.append(f"{command} {self.name}")

    def ready(self) -> Any:
        self._events.append(f"ready {self.name}")
        if isinstance(self._says, Exception):
            raise self._says
        return self._says

    def ask(self, command: str, limit_s: float = 0.0) -> Any:
        self._events.append(f"{command} {self.name}")
        if isinstance(self._says, Exception):
            raise self._says
        return {"device": 1.0, "wall": 1.0} if command == "time" else {"graphs": []}


def line_of(stack: ExitStack, events: list[str], says: dict[str, Any], ahead: bool) -> Any:
    starts: Any = [partial(Step, name, events, said) for name, said in says.items()]
    return process.Line(stack, starts, ahead)


def test_on_a_gpu_a_process_imports_while_the_one_before_it_compiles_and_then_waits() -> None:
    events: list[str] = []
    with ExitStack() as stack:
        line = line_of(stack, events, {"a": {"n": 1}, "b": {"n": 2}}, ahead=True)
        first, said = line.next()
        assert said == {"n": 1} and events == ["start a", "go a", "start b", "ready a"]
        first.close()
        assert line.next()[1] == {"n": 2}
    assert events[4:] == ["close a", "go b", "ready b", "close b"]


def test_on_cpu_no_process_is_started_beside_one_that_is_measured() -> None:
    events: list[str] = []
    with ExitStack() as stack:
        line = line_of(stack, events, {"a": {}, "b": {}}, ahead=False)
        line.next()
        line.next()
    assert events[:6] == ["start a", "go a", "ready a", "start b", "go b", "ready b"]


@pytest.mark.parametrize("full", [True, False])
def test_without_room_for_a_second_process_the_first_is_its_own_control(full: bool) -> None:
    lost = Lost("inductor_again", "CUDA out of memory" if full else "Segmentation fault")
    first: Any = object()
    events: list[str] = []
    with ExitStack() as stack:
        line = line_of(stack, events, {AGAIN: lost}, ahead=False)
        if full:
            found = race.again(line, first, {"first_s": 9.0, "held": {}})
            assert found == (first, {"first_s": None, "held": {}})
        else:
            with pytest.raises(Lost):
                race.again(line, first, {})
        assert events[-1] == f"close {AGAIN}", "its memory is given back at once"


@pytest.mark.parametrize("problem", [None, Lost("mine", "CUDA out of memory"), Cut()])
def test_what_was_measured_is_kept_where_graphs_cannot_be_described(
    problem: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def by_turns(contestants: dict[str, Any], seconds: float) -> Any:
        contestants[OURS]._says = problem
        return {"device": {}}

    monkeypatch.setattr(race, "by_turns", by_turns)
    with ExitStack() as stack:
        line = line_of(stack, events, {INDUCTOR: {}, OURS: {}, AGAIN: {}}, ahead=True)
        raced = race.race(line, plan_of(tmp_path))
        assert events[-3:] == [f"close {INDUCTOR}", f"close {AGAIN}", f"graphs {OURS}"]
    assert raced.samples == {"device": {}} and raced.own_control
    assert ("undescribed" in raced.graphs) is (problem is not None)
    if isinstance(problem, Lost):
        assert "out of memory" in raced.graphs["undescribed"]
