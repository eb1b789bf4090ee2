"""Whole-graph acceptance: the rule, and the measurement on a small graph."""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch
from torch import Tensor
from torch._inductor import config as inductor_config

from cuda_agent_backend.acceptance import accuracy, speed
from cuda_agent_backend.acceptance import inputs as acceptance_inputs
from cuda_agent_backend.acceptance.accuracy import less_accurate
from cuda_agent_backend.acceptance.digests import kernel_set_digest
from cuda_agent_backend.acceptance.inputs import scale_weights, vary
from cuda_agent_backend.acceptance.insert_kernels import insert_kernels
from cuda_agent_backend.acceptance.rule import (
    MEDIAN,
    Acceptance,
    Measurement,
    decide,
    is_decided,
    next_count,
)
from cuda_agent_backend.acceptance.trial import Trial
from cuda_agent_backend.acceptance.whole_graph import WholeGraph, graph_task, real_inputs
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.hook.kernel_pass import KernelPass
from cuda_agent_backend.options import Options
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.runtime import kernels
from cuda_agent_backend.runtime import tensor_files as tensors
from cuda_agent_backend.runtime.machine import key_of
from cuda_agent_backend.runtime.tensor_files import are_of, load, record, save
from cuda_agent_backend.search.client import SearchClient, SearchProcess
from cuda_agent_backend.tools.capture import capture
from sandbox.graph.build import build_graph
from sandbox.task.task import Task
from sandbox.timing.decision import Interval
from sandbox.timing.device_lock import DeviceLock

GOOD = Measurement(1.2, 1.1, 1.3, True)
GAIN = {"a": 3.0, "b": 2.0, "c": 1.0}


def measuring(
    ok: Callable[[Sequence[str]], bool],
) -> tuple[Callable[[Sequence[str]], Measurement], list[list[str]]]:
    asked: list[list[str]] = []

    def measure(chosen: Sequence[str]) -> Measurement:
        asked.append(list(chosen))
        return GOOD if ok(chosen) else Measurement(0.95, 0.9, 0.99, True)

    return measure, asked


def test_all_kernels_are_used_where_the_graph_is_faster_with_them() -> None:
    measure, asked = measuring(lambda _: True)
    found = decide(list(GAIN), GAIN, measure, lambda: 99)
    assert (found.use, found.final, len(asked)) == (("a", "b", "c"), True, 1)


def test_the_least_promising_kernel_is_dropped_first() -> None:
    measure, asked = measuring(lambda chosen: "c" not in chosen)
    found = decide(list(GAIN), GAIN, measure, lambda: 99)
    assert found.use == ("a", "b") and "0.950x" in found.reason
    assert asked == [["a", "b", "c"], ["a", "b"]]


def test_no_kernel_is_used_where_none_helps() -> None:
    measure, _ = measuring(lambda _: False)
    found = decide(list(GAIN), GAIN, measure, lambda: 99)
    assert (found.use, found.final) == ((), True)


def test_a_decision_that_the_budget_cut_short_is_not_final() -> None:
    measure, asked = measuring(lambda _: False)
    found = decide(list(GAIN), GAIN, measure, lambda: 0)
    assert (found.use, found.final, len(asked)) == ((), False, 1)


def test_in_a_hurry_more_is_dropped_and_what_was_skipped_may_be_tried_later() -> None:
    many = {str(i): 12.0 - i for i in range(12)}
    measure, asked = measuring(lambda _: False)
    trials = iter([2, 2, 1, 1, 0, 0])
    found = decide(list(many), many, measure, lambda: next(trials))
    assert [len(chosen) for chosen in asked] == [12, 4, 2]
    assert (found.use, found.final) == ((), False)
    measure, _ = measuring(lambda chosen: len(chosen) <= 4)
    assert decide(list(many), many, measure, lambda: 2).use == ("0", "1", "2", "3")


def test_with_time_a_quarter_is_dropped_at_a_time() -> None:
    counts = [12]
    while counts[-1]:
        counts.append(next_count(counts[-1], 99))
    assert counts == [12, 9, 7, 6, 5, 4, 3, 2, 1, 0]
    assert [next_count(12, trials) for trials in (3, 2, 1, 0)] == [5, 4, 4, 4]


@pytest.mark.parametrize(
    ("median", "low", "accurate", "wanted"),
    [
        (1.01, 1.0, True, True),
        (1.01, 0.999, True, False),
        (1.004, 1.0, True, False),
        (2, 2, False, False),
    ],
)
def test_the_bounds_of_acceptance(median: float, low: float, accurate: bool, wanted: bool) -> None:
    assert Measurement(median, low, 3.0, accurate).acceptable == wanted


@pytest.mark.parametrize(
    ("device", "wall", "wanted"),
    [
        ((1.10, 1.08, 1.12), (1.00, 0.99, 1.01), True),
        ((1.00, 0.995, 1.005), (1.10, 1.08, 1.12), True),
        ((0.72, 0.71, 0.73), (1.10, 1.08, 1.12), False),
        ((1.10, 1.08, 1.12), (0.97, 0.96, 0.98), False),
        ((1.10, 1.08, 1.12), (0.98, 0.90, 1.10), False),
        ((1.00, 0.995, 1.005), (1.00, 0.99, 1.01), False),
    ],
)
def test_on_cuda_neither_clock_may_lose(
    device: tuple[float, float, float], wall: tuple[float, float, float], wanted: bool
) -> None:
    found = Measurement(*device, accurate=True, wall=Interval(*wall, pairs=60))
    assert found.acceptable == wanted
    assert f"{device[0]:.3f}x" in found.why_not and f"{wall[0]:.3f}x" in found.why_not


def recorded_graph(folder: Path) -> tuple[Task, Path]:
    """`network` as a task, and the folder with what it was called with."""
    (found,) = capture(network, INPUTS, kit.options_in(folder), record_in=folder / "real")
    whole = graph_task(found.module.graph)
    assert isinstance(whole, Task)
    return whole, Path(found.inputs)


def trial_of(whole: Task, recorded: Path) -> Trial:
    return Trial(whole, {}, 0, DeviceLock(None), recorded)


def test_a_graph_is_timed_on_its_own_inputs_and_compared_on_drawn_ones_too(tmp_path: Path) -> None:
    whole, folder = recorded_graph(tmp_path)
    trial = trial_of(whole, folder)
    assert trial.on_real_inputs and len(trial.grounds) == 2
    for mine, own in zip(trial.timed, ordered(whole), strict=True):
        assert torch.equal(mine, own) and mine.stride() == own.stride()
    torch.testing.assert_close(trial.grounds[1].reference[0], network(*INPUTS))
    assert not torch.equal(trial.grounds[0].inputs[0], trial.timed[0])


def test_dummies_of_which_nothing_comes_are_not_timed_on(tmp_path: Path) -> None:
    whole, folder = recorded_graph(tmp_path)
    zeros = [torch.zeros_like(x) for x in load(folder)]
    save(tmp_path / "zeros", zeros)
    trial = trial_of(whole, tmp_path / "zeros")
    assert not trial.on_real_inputs and len(trial.grounds) == 2
    assert trial.timed is trial.grounds[0].inputs


def test_outputs_are_looked_at_in_parts_that_hold_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptance_inputs, "CHUNK", 3)
    nan = float("nan")
    late = torch.full((5, 4), nan)
    late[2, 1] = late[4, 0] = 7.0
    for laid_out in (late, late.t(), late[:, :3], late.expand(2, 5, 4)):
        assert not vary([laid_out])
    late[3, 2] = 8.0
    for laid_out in (late, late.t(), late[:, :3], late.expand(2, 5, 4)):
        assert vary([laid_out])
    assert not vary([late[:, :2]])


def test_whether_outputs_vary() -> None:
    nan = float("nan")
    assert vary([torch.ones(3), torch.tensor([nan, 1.0, 2.0])])
    assert not vary([torch.ones(3), torch.tensor([nan, 1.0, 1.0]), torch.zeros(0)])
    assert not vary([torch.full((2,), nan)])


def test_inputs_that_are_not_the_graphs_are_drawn_instead(tmp_path: Path) -> None:
    whole, folder = recorded_graph(tmp_path)
    others = [x.double() for x in load(folder)]
    assert not are_of(others, whole.inputs) and not are_of(load(folder)[:1], whole.inputs)
    save(tmp_path / "others", others)
    for given in (tmp_path / "others", tmp_path / "nowhere"):
        trial = trial_of(whole, given)
        assert len(trial.grounds) == 1 and are_of(trial.timed, whole.inputs)


def compared(
    device: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Measurement, list[int]]:
    """A graph compared with itself, so much faster by the device's clock where the wall clock cannot tell; and how many
    rounds were asked for, each time."""
    whole, folder = recorded_graph(tmp_path)
    trial = trial_of(whole, folder)
    asked: list[int] = []

    def timed(_: Any, __: str, rounds: int, *___: Any) -> dict[str, dict[str, list[float]]]:
        asked.append(rounds)
        undecided = [0.8 if i % 9 < 5 else 1.0 for i in range(rounds)]
        return {
            "device": {"plain": [device] * rounds, "spliced": [1.0] * rounds},
            "wall": {"plain": undecided, "spliced": [0.9] * rounds},
        }

    monkeypatch.setattr(speed, "take_samples", timed)
    return trial._compare(trial.plain, 0, MEDIAN), asked


def test_each_clock_says_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = compared(2.0, tmp_path, monkeypatch)
    assert (found.median, found.low, found.high, found.on_real_inputs) == (2.0, 2.0, 2.0, True)
    assert found.wall is not None and found.wall.low < 1 < found.wall.high
    assert asked == [speed.ROUNDS, speed.LONGER * speed.ROUNDS]
    assert found.wall.pairs == sum(asked)


def test_a_loss_by_the_device_is_not_asked_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, asked = compared(0.9, tmp_path, monkeypatch)
    assert asked == [speed.ROUNDS] and not found.acceptable


@pytest.mark.parametrize(
    ("device", "wall", "decided"),
    [
        ([1.1] * 20, [1.06] * 20, True),
        ([1.1] * 20, [1.04] * 20, False),
        ([1.1] * 18 + [1.0] * 2, [1.1] * 20, True),
        ([1.1] * 12 + [1.0] * 8, [1.1] * 20, False),
        ([0.9] * 20, [1.1] * 20, True),
        ([1.0] * 20, [1.0] * 20, False),
    ],
)
def test_rounds_end_where_more_would_decide_nothing_else(
    device: list[float], wall: list[float], decided: bool
) -> None:
    samples = {
        name: {"plain": plain, "spliced": [1.0] * 20}
        for name, plain in (("device", device), ("wall", wall))
    }
    assert is_decided(samples, least=1.05) is decided


def test_a_graph_that_is_not_finite_where_only_eager_is_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = recorded_graph(tmp_path)
    trial = trial_of(whole, folder)
    plain = trial._expected

    def with_zeros_for_eager(inputs: Any) -> Any:
        eager, oracle = plain(inputs)
        return [torch.zeros_like(x) for x in eager], [torch.zeros_like(x) for x in oracle]

    def infinite(inputs: Any) -> list[Tensor]:
        return [torch.full_like(x, torch.inf) for x in plain(inputs)[0]]

    monkeypatch.setattr(trial, "_expected", with_zeros_for_eager)
    trial.plain = infinite
    trial.grounds = [trial._ground(ground.inputs) for ground in trial.grounds]
    found = trial._compare(infinite, 0, MEDIAN)
    assert found.accurate and found.error_ratio is None
    decision = Acceptance(("a",), speedup=found).to_json()
    cache = kit.cache_of(kit.options_in(tmp_path))
    cache.put_acceptance("name", "kernels", decision)
    assert cache.get_acceptance("name", "kernels") == json.loads(json.dumps(decision))


class Refuses:
    """A searcher that looks at the inputs which it is given for a graph."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.inputs: list[list[Tensor]] = []

    def search(self, *_: Any) -> dict[str, Any]:
        return {}

    def enqueue(self, *_: Any) -> None: ...

    def accept(self, *given: Any) -> str:
        folder = given[0].inputs
        self.folders.append(folder)
        self.inputs.append(load(Path(folder)) if folder else [])
        return "not today"


@pytest.fixture
def measuring_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Options of a cache with a kernel for `network`, whose whole graph is to be measured."""
    monkeypatch.setattr(kernels, "_open", {})
    options = kit.options_in(tmp_path, search="search", acceptance="measure")
    _, (form,) = captured(tmp_path)
    kit.promote(kit.cache_of(options), form.task, "", tmp_path)
    return options


def test_the_pass_hands_the_graphs_inputs_on(measuring_options: Options, tmp_path: Path) -> None:
    asked = Refuses()
    (found,) = capture(network, INPUTS, measuring_options, record_in=tmp_path / "real")
    opened = kernels.open_kernels(measuring_options.cache_dir)
    assert isinstance(opened, kernels.Kernels)
    hook = KernelPass(measuring_options, opened, asked, inputs=found.inputs)
    hook(found.module.graph)
    assert asked.folders == [found.inputs]
    assert [r.reason for report in hook.reports for r in report.regions] == ["not today"]


def test_what_a_model_is_called_with_is_what_its_graph_is_measured_on(
    measuring_options: Options,
) -> None:
    asked = Refuses()
    backend = kit.backend_for(measuring_options, searcher=asked)
    with inductor_config.patch(force_disable_caches=True):  # else an earlier run's code is used
        torch.compile(network, backend=backend)(*INPUTS)
    ((x, w),) = asked.inputs
    assert torch.equal(x, INPUTS[0]) and torch.equal(w, INPUTS[1])
    assert not Path(asked.folders[0]).exists() and backend.passes[0].examples == ()


def test_what_is_not_what_a_graph_takes_is_not_recorded(tmp_path: Path) -> None:
    whole, _ = captured(tmp_path)
    sparse = INPUTS[0].to_sparse()
    for examples in ([*INPUTS, 3], INPUTS[:1], [x.double() for x in INPUTS], [sparse, INPUTS[1]]):
        with real_inputs(whole, examples) as folder:
            assert folder == ""


def test_what_cannot_be_recorded_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slice_of_much = torch.zeros(1 << 20).as_strided((2, 3), (500_000, 1))
    monkeypatch.setattr(tensors, "RECORD_LIMIT", 1 << 20)
    assert record(tmp_path / "much", [slice_of_much]) == ""
    (tmp_path / "file").touch()
    assert record(tmp_path / "file" / "there", [INPUTS[0]]) == ""
    whole, _ = captured(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with real_inputs(whole, ordered(whole)) as folder:
        assert folder == ""


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0,)])
def test_empty_tensors_are_recorded(shape: tuple[int, ...], tmp_path: Path) -> None:
    empty = torch.empty(shape, dtype=torch.bfloat16)
    (again,) = load(Path(record(tmp_path / "empty", [empty])))
    assert (again.shape, again.stride(), again.dtype) == (empty.shape, empty.stride(), empty.dtype)


def test_inputs_are_recorded_before_the_graph_changes_them(tmp_path: Path) -> None:
    def counting(x: Tensor) -> Tensor:
        y = x.exp().sum(-1)
        x.add_(1)
        return y

    x = torch.randn(40, 50)
    before = x.clone()
    (found,) = capture(counting, (x,), kit.options_in(tmp_path), record_in=tmp_path / "real")
    assert torch.equal(load(Path(found.inputs))[0], before) and not torch.equal(x, before)


def test_a_result_as_exact_as_inductors_is_not_less_accurate() -> None:
    exact = torch.randn(1000, dtype=torch.float64)
    eager = exact.float()
    inductor = eager * (1 + 1e-6)
    assert less_accurate([inductor], [inductor], [eager], [exact])[0] == ""
    assert "output 0" in less_accurate([eager * 1.001], [inductor], [eager], [exact])[0]


def test_integers_may_differ_no_more_than_under_inductor() -> None:
    plain = torch.zeros(10000, dtype=torch.int64)
    one, many = plain.clone(), plain.clone()
    one[0], many[:100] = 1, 1
    exact = plain.double()
    assert less_accurate([one], [plain], [plain], [exact])[0] == ""
    assert less_accurate([many], [plain], [plain], [exact])[0] != ""
    assert less_accurate([many], [many], [plain], [exact])[0] == ""


def network(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).softmax(-1) @ w


INPUTS = (torch.randn(8, 16), torch.randn(16, 16))


def captured(folder: Path) -> tuple[Task, list[Canonical]]:
    (found,) = capture(network, INPUTS, kit.options_in(folder))
    graph = found.module.graph
    whole = graph_task(graph)
    assert isinstance(whole, Task)
    forms = [canonical(r.nodes, r.outputs, r.target) for r in partition(graph) if not r.reason]
    return whole, [form for form in forms if isinstance(form, Canonical)]


@pytest.mark.parametrize("turned", [False, True])
def test_bytes_that_differ_are_counted_some_at_a_time(
    turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "CHUNK", 7)
    left = torch.randint(-3, 3, (10, 6), dtype=torch.int8)
    right = left.t().contiguous().t() if turned else left.clone()
    right[4, 5] += 1
    right[9, 0] -= 1
    assert accuracy._differing(left, right) == 2 / 60
    assert accuracy._differing(left[:0], right[:0]) == 0.0
    assert accuracy._differing(torch.tensor(3), torch.tensor(4)) == 1.0


def test_a_whole_graph_replayed_falls_into_the_same_regions(tmp_path: Path) -> None:
    whole, forms = captured(tmp_path)
    again = build_graph(Task.from_json(whole.to_json()))
    rebuilt = [
        canonical(r.nodes, r.outputs, r.target) for r in partition(again.graph) if not r.reason
    ]
    digests = [form.task.digest for form in rebuilt if isinstance(form, Canonical)]
    assert digests and digests == [form.task.digest for form in forms]
    torch.testing.assert_close(again(*ordered(whole))[0], network(*INPUTS))


@pytest.mark.parametrize(("name", "training"), [("mamba_block", False), ("mobilenet_stage", True)])
def test_a_network_replayed_falls_into_the_same_regions(
    name: str, training: bool, tmp_path: Path
) -> None:
    from examples import models

    model, inputs = getattr(models, name)()
    model.train(training)
    for found in capture(model, inputs, kit.options_in(tmp_path), training=training):
        whole = graph_task(found.module.graph)
        assert isinstance(whole, Task)
        assert digests(found.module.graph) == digests(build_graph(whole).graph)


def digests(graph: torch.fx.Graph) -> list[str]:
    both = [one for region in partition(graph) for one in (region, region.rest) if one]
    offered = [region for region in both if region.reason is None]
    forms = [canonical(region.nodes, region.outputs, region.target) for region in offered]
    return sorted(form.task.digest for form in forms if isinstance(form, Canonical))


def ordered(whole: Task) -> list[Tensor]:
    by_shape = {tuple(value.shape): value for value in INPUTS}
    return [by_shape[spec.shape] for spec in whole.inputs]


def test_a_kernel_without_a_place_is_told(tmp_path: Path) -> None:
    whole, _ = captured(tmp_path)
    assert insert_kernels(build_graph(whole), frozenset({"0" * 64})) == {"0" * 64}


def test_a_kernel_beside_a_product_is_put_in_where_none_is_for_the_whole(tmp_path: Path) -> None:
    inputs = (torch.randn(256, 128), torch.randn(128, 128))
    options = kit.options_in(tmp_path)
    (found,) = capture(lambda x, w: (x @ w).neg().exp(), inputs, options)
    whole = graph_task(found.module.graph)
    assert isinstance(whole, Task)
    (region,) = partition(found.module.graph)
    keys = []
    for part in (region, region.rest):
        assert part is not None
        form = canonical(part.nodes, part.outputs, part.target)
        assert isinstance(form, Canonical)
        body = kit.elementwise(form.task, "std::exp(-a)")
        record = kit.promote(kit.cache_of(options), form.task, body, tmp_path)
        assert isinstance(kernels.open_kernels(options.cache_dir).find(record.key), kernels.Hit)
        keys.append(record.key.digest)
    for use, reads in ((keys[1:], 1), (keys, 2), (keys[:1], 2)):
        module = build_graph(whole)
        assert insert_kernels(module, frozenset(use)) == frozenset()
        (call,) = (n for n in module.graph.nodes if "run_" in str(n.target))
        assert len(call.all_input_nodes) == reads


def test_a_kernel_that_makes_the_graph_wrong_is_dropped_by_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_open", {})
    whole, (form,) = captured(tmp_path)
    options = kit.options_in(tmp_path, search="search")
    cache = kit.cache_of(options)
    count = form.task.inputs[0].numel
    body = f"for (long i = 0; i < {count}; i++) ((float*)buffers[1])[i] = 1000;"
    kit.promote(cache, form.task, body, tmp_path)
    key = key_of(form.task)
    process = SearchProcess()
    try:
        decision = SearchClient(options, process).accept(WholeGraph("name", whole, (key,)), 60.0)
    finally:
        process.stop()
    assert isinstance(decision, dict), decision
    assert decision["use"] == [] and "less accurate" in decision["reason"]
    kept = cache.get_acceptance("name", kernel_set_digest([key]))
    assert isinstance(kept, dict) and kept["use"] == []


def test_calm_inputs_keep_activations_of_a_deep_network_finite() -> None:
    layers = [torch.randn(500, 500) for _ in range(30)]
    bias, few = torch.randn(500), torch.randn(4, 500).t()
    before = bias.clone()
    scale_weights([*layers, bias, few])
    x = torch.ones(2, 500)
    for layer in layers:
        x = x @ layer.t()
    assert x.isfinite().all() and x.abs().max() < 1e3
    assert torch.equal(bias, before) and few.stride() == (1, 500)
