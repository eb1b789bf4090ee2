"""Recurrent layers on cuda: recognised, written, and right, as an emulator on the CPU runs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import cuda_emulator
import pytest
import torch
from torch import Tensor

from cuda_agent_backend.codegen.api import as_it_stands, generate, schedules
from cuda_agent_backend.codegen.cuda.recurrent.match import GATES
from cuda_agent_backend.codegen.cuda.recurrent.schedules import PROPOSALS
from cuda_agent_backend.codegen.cuda.recurrent.writer import CudaRecurrent
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.schedule_space import space_of
from sandbox.accuracy.rule import compare
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Launch, Plan
from sandbox.task.task import Arg, InputRef, Node, NodeRef, Task, TensorSpec

DEVICE = DeviceFacts()
KINDS = tuple(GATES)
INFINITY, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Case:
    """Layers, and what goes through them."""

    kind: str = "lstm"
    length: int = 5
    batch: int = 3
    features: int = 7
    units: int = 12
    layers: int = 1
    both: bool = False
    biased: bool = True
    batch_first: bool = False

    @property
    def directions(self) -> int:
        return 2 if self.both else 1

    @property
    def results(self) -> int:
        return 3 if self.kind == "lstm" else 2


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def tensors(case: Case) -> list[Tensor]:
    """x, h, c where there is one, weights."""
    rows = GATES[case.kind] * case.units
    sizes = (case.batch, case.length) if case.batch_first else (case.length, case.batch)
    states = (case.layers * case.directions, case.batch, case.units)
    found = [
        randn(*sizes, case.features),
        *(randn(*states, seed=n) for n in range(case.results - 1)),
    ]
    for number in range(case.layers * case.directions):
        width = case.features if number < case.directions else case.directions * case.units
        shapes = [(rows, width), (rows, case.units), *([(rows,), (rows,)] if case.biased else [])]
        scale = case.units**-0.5
        found += [scale * randn(*shape, seed=9 * number + n) for n, shape in enumerate(shapes)]
    return found


def layers(case: Case, given: list[Tensor]) -> tuple[Tensor, ...]:
    """What torch makes of them, in their precision."""
    x, h, *more = given
    how = (case.biased, case.layers, 0.0, False, case.both, case.batch_first)
    if case.kind == "lstm":
        return torch.lstm(x, [h, more[0]], more[1:], *how)
    return getattr(torch, case.kind)(x, h, more, *how)


def spec(x: Tensor) -> TensorSpec:
    return TensorSpec(str(x.dtype).removeprefix("torch."), tuple(x.shape), tuple(x.stride()))


def task_of(case: Case, given: list[Tensor], results: tuple[int, ...] | None = None) -> Task:
    found = layers(case, given)
    wanted = results if results is not None else tuple(range(case.results))
    states = ("h", "c")[: case.results - 1]
    args: dict[str, Arg] = {
        "x": InputRef(0),
        **{name: InputRef(1 + n) for n, name in enumerate(states)},
        "weights": tuple(InputRef(n) for n in range(case.results, len(given))),
        "has_biases": case.biased,
        "num_layers": case.layers,
        "bidirectional": case.both,
        "batch_first": case.batch_first,
    }
    return Task(
        "cuda",
        tuple(map(spec, given)),
        (Node(f"cuda_agent.{case.kind}.default", args),),
        tuple(NodeRef(0, number) for number in wanted),
        tuple(spec(found[number]) for number in wanted),
    )


def analysed(task: Task) -> CudaRecurrent:
    found = as_it_stands(task)
    assert isinstance(found, CudaRecurrent), found
    return found


def generated(task: Task, schedule: Schedule) -> tuple[str, Plan]:
    candidate = generate(analysed(task), schedule, DEVICE)
    assert isinstance(candidate, Candidate), candidate
    return candidate.source, candidate.plan


def blocks(
    ranks: int = 1,
    rows: int = 2,
    threads: int = 128,
    splits: int = 8,
    kept: int = 1,
    tile: int = 64,
) -> Schedule:
    return Schedule.of(
        {"ranks": ranks, "rows": rows, "threads": threads, "splits": splits, "kept": kept, "tile": tile}
    )  # fmt: skip


def check(
    case: Case, schedule: Schedule, folder: Path, results: tuple[int, ...] | None = None
) -> list[Tensor]:
    given = tensors(case)
    task = task_of(case, given, results)
    got = cuda_emulator.run(*generated(task, schedule), given, folder)
    numbers = [output.output for output in task.outputs if isinstance(output, NodeRef)]
    eager, wide = layers(case, given), layers(case, [x.double() for x in given])
    report = compare(got, [eager[n] for n in numbers], [wide[n] for n in numbers])
    assert report.passes, report.reason
    for found, wanted in zip(got, task.output_specs, strict=True):
        assert found.stride() == wanted.stride
    return got


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_as_accurate_as_in_torch(kind: str, ranks: int, tmp_path: Path) -> None:
    check(Case(kind), blocks(ranks), tmp_path)


# sizes that are no multiple of anything, so that padding of units, slices and tiles is met, and rows of no sequence
CASES: dict[str, tuple[Case, Schedule]] = {
    "two layers": (Case("gru", layers=2), blocks(2)),
    "both directions": (Case("gru", both=True), blocks(4, 1)),
    "two layers in both directions": (Case(layers=2, both=True, biased=False), blocks(2)),
    "batch first": (Case("rnn_tanh", batch=1, both=True, batch_first=True), blocks(2)),
    "odd units": (Case(units=19, length=4), blocks(4)),
    "odd units of one block": (Case("gru", units=37, length=4), blocks(1, 3, splits=16)),
    "units of several rounds": (Case("rnn_relu", units=97, batch=4, length=3), blocks(1, 4, splits=4, kept=3)),
    "one step": (Case(length=1), blocks(2)),
    "two steps": (Case(length=2), blocks(2)),
    "one unit": (Case(units=1, features=1), blocks(1)),
    "all weights in shared memory": (Case(units=40, length=4), blocks(2, kept=0, splits=4)),
    "some weights in shared memory": (Case(units=40, length=4), blocks(2, kept=2, splits=4)),
    "a whole warp for a product": (Case("gru", units=33, length=4), blocks(4, 3, splits=32)),
    "eight blocks": (Case(units=62, length=4, batch=2), blocks(8, 1, kept=2)),
    "sixteen blocks": (Case("gru", units=64, length=3, batch=2, biased=False), blocks(16, 1, kept=1)),
    "eight sequences": (Case("gru", batch=11, length=4), blocks(2, 8)),
    "more threads": (Case(units=24, length=4), blocks(2, threads=256, splits=16)),
    "large tiles": (Case("gru", length=17, batch=9, units=50), blocks(1, 4, tile=128, splits=16)),
    "several tiles": (Case("rnn_tanh", length=9, batch=9, units=70, features=35), blocks(2, 8, kept=2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_layers_of_any_form_are_as_accurate_as_in_torch(name: str, tmp_path: Path) -> None:
    case, schedule = CASES[name]
    check(case, schedule, tmp_path)


@pytest.mark.parametrize("results", [(0,), (1,), (2, 0), (1, 2)])
def test_results_that_are_not_wanted_are_left_out(results: tuple[int, ...], tmp_path: Path) -> None:
    check(Case(layers=2), blocks(2), tmp_path, results)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_as_in_torch(kind: str, tmp_path: Path) -> None:
    case = Case(kind, batch=6, length=4)
    given = tensors(case)
    given[0][1, 0, 2], given[0][1, 1, 0], given[0][2, 2, 1] = NAN, INFINITY, -INFINITY
    given[0][:, 3] *= 1e4
    given[1][0, 4, 3] = INFINITY
    if kind == "lstm":
        given[2][0, 5, :2] = torch.tensor([INFINITY, NAN])
    got = cuda_emulator.run(*generated(task_of(case, given), blocks(2)), given, tmp_path)
    torch.testing.assert_close(got, list(layers(case, given)), equal_nan=True, rtol=1e-5, atol=2e-6)


def test_inputs_and_outputs_of_any_steps(tmp_path: Path) -> None:
    case = Case("gru", batch=4, length=5)
    given = tensors(case)
    given[0] = randn(5, 4, 2 * case.features)[..., : case.features]
    given[1] = randn(case.units, 1, 4).permute(1, 2, 0)
    task = task_of(case, given)
    specs = [replace(task.output_specs[0], stride=(100, 17, 1)), task.output_specs[1]]
    specs[1] = replace(specs[1], stride=(1, 2, 9))
    got = cuda_emulator.run(
        *generated(replace(task, output_specs=tuple(specs)), blocks(2)), given, tmp_path
    )
    torch.testing.assert_close(got, list(layers(case, given)), rtol=1e-5, atol=2e-6)
    assert [x.stride() for x in got] == [(100, 17, 1), (1, 2, 9)]


@pytest.mark.parametrize("layers_", [1, 2])
def test_features_may_lie_apart(layers_: int, tmp_path: Path) -> None:
    """As channels of an image whose columns are the steps."""
    case = Case("gru", batch=4, length=5, batch_first=True, layers=layers_)
    given = tensors(case)
    given[0] = randn(4, case.features, 5).transpose(1, 2)
    got = cuda_emulator.run(*generated(task_of(case, given), blocks(2)), given, tmp_path)
    torch.testing.assert_close(got, list(layers(case, given)), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("number", range(2))
def test_the_first_schedules_are_right(number: int, tmp_path: Path) -> None:
    case = Case("lstm", length=3, batch=3, units=32)
    check(case, schedules(analysed(task_of(case, tensors(case))), DEVICE)[number], tmp_path)


def reason(case: Case, given: list[Tensor] | None = None, **args: Arg) -> str:
    own = tensors(case)
    task = task_of(case, own)
    node = task.nodes[0]
    task = replace(
        task,
        inputs=tuple(map(spec, given or own)),
        nodes=(Node(node.op, {**node.args, **args}),),
    )
    found = as_it_stands(task)
    assert isinstance(found, NotCovered), found
    return found.reason


def test_what_is_not_covered_says_why() -> None:
    case = Case("gru", layers=2)
    own = tensors(case)
    assert "inputs" in reason(Case(layers=8))
    assert "float64" in reason(case, [x.double() for x in own])
    assert "not an input" in reason(case, h=None)
    assert "projections" in reason(case, weights=(InputRef(2),))
    assert "projections" in reason(case, weights=(InputRef(2),) * 8)
    assert "not contiguous" in reason(case, [*own[:3], own[3].t().contiguous().t(), *own[4:]])
    assert "2 dimensions" in reason(case, [own[0][:, 0], *own[1:]])
    assert "truth" in reason(case, bidirectional=2)
    assert "state" in reason(case, [own[0], own[1][:1], *own[2:]])
    twice = task_of(case, own, (0, 0))
    assert isinstance(as_it_stands(twice), NotCovered)


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": 3}, {"ranks": 16}, {"rows": 0}, {"rows": 9}, {"threads": 96}, {"threads": 1024}, {"splits": 5},
        {"splits": 64}, {"kept": 60}, {"kept": 14, "threads": 512}, {"tile": 32}, {"speed": 1},
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_is_refused(change: dict[str, int]) -> None:
    case = Case(units=100, length=2)
    analysis = analysed(task_of(case, tensors(case)))
    first = {"ranks": 8, "rows": 1, "threads": 256, "splits": 4, "kept": 7, "tile": 64}
    assert isinstance(generate(analysis, Schedule.of(first), DEVICE), Candidate)
    assert isinstance(generate(analysis, Schedule.of({**first, **change}), DEVICE), NotCovered)


def test_without_clusters_a_layer_that_one_block_holds_is_covered() -> None:
    old = DeviceFacts(sm_count=108, arch="sm_80", shared_per_block_bytes=163 << 10)
    small, large = (task_of(case, tensors(case)) for case in (Case(units=64), Case(units=200)))
    found = schedules(analysed(small), old)
    assert found and all(s.parameters(0)["ranks"] == 1 for s in found)
    assert schedules(analysed(large), old) == []
    assert schedules(analysed(large), DEVICE)


@pytest.mark.parametrize(
    "case",
    [
        Case(length=72, batch=20, features=90, units=320),
        Case("gru", 60, 16, 128, 200, both=True, batch_first=True),
        Case("rnn_tanh", 4, 32, 64, 400),
        Case(length=2, batch=16, units=512),
        Case(length=2, batch=10, units=97),
        Case(length=2, batch=400, units=128),
    ],
    ids=str,
)
def test_proposals_fit_and_the_first_ones_run_all_at_once(case: Case) -> None:
    task = task_of(case, tensors(case))
    found = schedules(analysed(task), DEVICE)
    assert 0 < len(found) <= PROPOSALS
    assert all(isinstance(generate(analysed(task), s, DEVICE), Candidate) for s in found)
    _, plan = generated(task, found[0])
    assert case.batch > 32 or blocks_of(plan.steps[1]) <= DEVICE.sm_count
    assert len(space_of(found).schedules()) > len(found)


def blocks_of(step: object) -> int:
    assert isinstance(step, Launch)
    x, y, _ = map(int, step.grid)
    return x * y


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize(
    ("case", "number"),
    [
        (Case(length=4, batch=20, features=90, units=320), 0),
        (Case(length=4, batch=20, features=90, units=320), 2),
        (Case("gru", 4, 16, 128, 200, both=True, batch_first=True), 0),
        (Case("rnn_relu", 4, 32, 64, 400), 0),
        (Case(length=2, batch=16, units=512), 0),
        (Case(length=2, batch=10, units=97, layers=2), 4),
    ],
    ids=str,
)
def test_sources_compile_without_spilling(case: Case, number: int, tmp_path: Path) -> None:
    task = task_of(case, tensors(case))
    candidate = generate(analysed(task), schedules(analysed(task), DEVICE)[number], DEVICE)
    assert isinstance(candidate, Candidate), candidate
    built = compile_candidate(candidate, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    assert all(kernel["spill_store_bytes"] == 0 for kernel in built.facts.values())
