"""Where it was measured to be faster, convolutions keep eager's layouts."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.graph import GraphLowering
from torch.nn import functional as F

from cuda_agent_backend.acceptance import process as accept
from cuda_agent_backend.acceptance import speed
from cuda_agent_backend.acceptance.digests import kernel_set_digest
from cuda_agent_backend.acceptance.rule import Acceptance, Measurement, decide_layouts, decision_of
from cuda_agent_backend.acceptance.whole_graph import WholeGraph, graph_task
from cuda_agent_backend.graph.layouts import channels_last, choosing, keep_eagers
from cuda_agent_backend.hook.kernel_pass import KernelPass
from cuda_agent_backend.options import Options
from cuda_agent_backend.partition.report import GraphReport
from cuda_agent_backend.runtime import kernels
from cuda_agent_backend.runtime.machine import all_flags
from cuda_agent_backend.search.client import SearchClient, SearchProcess
from cuda_agent_backend.tools.capture import capture
from cuda_agent_backend.tools.explain import explain
from kernel_cache import KernelCache
from sandbox.task.task import Task
from sandbox.timing.decision import Interval

INPUTS = (torch.randn(2, 8, 14, 14), torch.randn(8, 8, 3, 3))
EAGERS, INDUCTORS = {"use": [], "eager_layouts": True}, {"use": [], "eager_layouts": False}


@pytest.fixture(autouse=True)
def no_other_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_open", {})


def block(x: Tensor, w: Tensor) -> Tensor:
    y = F.silu(F.conv2d(x, w, padding=1) * 2)
    return F.conv2d(y + x, w, padding=1)


class Decides:
    """A searcher that measures nothing: it gives and keeps a decision."""

    def __init__(self, cache: KernelCache, decision: dict[str, Any] | str) -> None:
        self.cache, self.decision = cache, decision
        self.asked: list[WholeGraph] = []
        self.searched: list[Task] = []

    def search(self, tasks: Sequence[Task], *_: Any) -> dict[str, Any]:
        self.searched += tasks
        return {}

    def enqueue(self, *_: Any) -> None: ...

    def accept(self, whole: WholeGraph, _: float) -> dict[str, Any] | str:
        self.asked.append(whole)
        if isinstance(self.decision, dict):
            self.cache.put_acceptance(whole.name, kernel_set_digest(whole.keys), self.decision)
        return self.decision


def measuring(folder: Path, **wishes: Any) -> Options:
    return kit.options_in(folder, **{"search": "search", "acceptance": "measure", **wishes})


def chosen(
    options: Options, searcher: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[bool, GraphReport]:
    """Compile and run `block`; whether Inductor optimised layouts where it made code, and the report of the graph."""
    decided: list[bool] = []
    real = GraphLowering.__init__

    def lowering(self: GraphLowering, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        decided.append(self.layout_opt)

    before = config.layout_optimization
    backend = kit.backend_for(options, searcher=searcher)
    torch._dynamo.reset()
    with monkeypatch.context() as patch, config.patch(force_disable_caches=True):
        patch.setattr(GraphLowering, "__init__", lowering)
        found = torch.compile(block, backend=backend)(*INPUTS)
    torch.testing.assert_close(found, block(*INPUTS))
    assert config.layout_optimization == before
    (report,) = backend.passes[0].reports
    return decided[-1], report


def test_a_graph_keeps_eagers_layouts_where_it_was_measured_to_be_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = measuring(tmp_path)
    asked = Decides(kit.cache_of(options), EAGERS)
    optimised, report = chosen(options, asked, monkeypatch)
    assert not optimised and report.eager_layouts and "eager's layouts" in report.summary()
    assert [whole.keys for whole in asked.asked] == [()] and asked.asked[0].eager_layouts
    assert asked.searched
    for task in asked.searched:
        assert all(spec.stride[-1] == 1 for spec in (*task.inputs, *task.output_specs))
    again, report = chosen(measuring(tmp_path, search="cached"), None, monkeypatch)
    assert not again and report.layouts == EAGERS


@pytest.mark.parametrize("decision", [INDUCTORS, "it could not be measured"])
def test_elsewhere_inductor_chooses(
    decision: dict[str, Any] | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = measuring(tmp_path)
    asked = Decides(kit.cache_of(options), decision)
    optimised, report = chosen(options, asked, monkeypatch)
    assert optimised and not report.eager_layouts
    assert any(spec.stride[1] == 1 for task in asked.searched for spec in task.inputs)


@pytest.mark.parametrize(
    "wishes",
    [{"acceptance": "trust"}, {"search": "cached"}, {"freezing": True}],
    ids=["trusted", "cached", "frozen"],
)
def test_layouts_are_not_measured_where_that_is_not_wanted(
    wishes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freezing = wishes.pop("freezing", False)
    options = measuring(tmp_path, **wishes)
    asked = Decides(kit.cache_of(options), EAGERS)
    with config.patch(freezing=freezing):
        optimised, _ = chosen(options, asked, monkeypatch)
    assert optimised and not [whole for whole in asked.asked if not whole.keys]


def test_layouts_that_the_user_chose_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(measuring(tmp_path), inductor={"layout_optimization": False})
    asked = Decides(kit.cache_of(options), INDUCTORS)
    optimised, _ = chosen(options, asked, monkeypatch)
    assert not optimised and asked.asked == []


def test_a_decision_holds_for_the_flags_and_options_under_which_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = measuring(tmp_path)
    first, again, other, plain = (Decides(kit.cache_of(options), EAGERS) for _ in range(4))
    chosen(options, first, monkeypatch)
    chosen(options, again, monkeypatch)
    chosen(replace(options, inductor={"max_autotune": False}), other, monkeypatch)
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = not allowed
    try:
        chosen(options, plain, monkeypatch)
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    assert [len(asked.asked) for asked in (first, again, other, plain)] == [1, 0, 1, 1]


def test_training_and_graphs_within_graphs_leave_the_choice_to_inductor(tmp_path: Path) -> None:
    options = measuring(tmp_path)
    asked = Decides(kit.cache_of(options), EAGERS)

    def branches(x: Tensor, w: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x, w: block(x, w), lambda x, w: block(-x, w), (x, w))

    learnt = INPUTS[1].clone().requires_grad_()
    for function, inputs in ((block, (INPUTS[0], learnt)), (branches, INPUTS)):
        backend = kit.backend_for(options, searcher=asked)
        torch._dynamo.reset()
        with config.patch(force_disable_caches=True):
            found = torch.compile(function, backend=backend)(*inputs)
        torch.testing.assert_close(found, function(*inputs))
        assert backend.passes[0].reports and asked.asked == []


def test_a_graph_that_inductor_cannot_make_with_eagers_layouts_is_made_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = measuring(tmp_path)
    asked = Decides(kit.cache_of(options), EAGERS)
    real = GraphLowering.__init__

    def lowering(self: GraphLowering, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        if not self.layout_opt:
            raise RuntimeError("not in these layouts")

    backend = kit.backend_for(options, searcher=asked)
    torch._dynamo.reset()
    monkeypatch.setattr(GraphLowering, "__init__", lowering)
    with config.patch(force_disable_caches=True):
        found = torch.compile(block, backend=backend)(*INPUTS)
    torch.testing.assert_close(found, block(*INPUTS))
    assert backend.passes[0].reports[0].eager_layouts


def test_a_graph_without_a_region_to_search_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = measuring(tmp_path, min_bytes=1 << 30)
    asked = Decides(kit.cache_of(options), EAGERS)
    optimised, _ = chosen(options, asked, monkeypatch)
    assert optimised and asked.asked == []


@pytest.mark.parametrize(
    ("device", "wall", "accurate", "wanted"),
    [
        ((1.50, 1.48, 1.52), None, True, True),
        ((1.50, 1.48, 1.52), None, False, False),
        ((1.01, 1.005, 1.02), None, True, False),
        ((1.00, 0.99, 1.01), (1.10, 1.08, 1.12), True, True),
        ((1.10, 1.08, 1.12), (0.97, 0.96, 0.98), True, False),
    ],
)
def test_what_eagers_layouts_must_bring(
    device: tuple[float, float, float],
    wall: tuple[float, float, float] | None,
    accurate: bool,
    wanted: bool,
) -> None:
    found = decide_layouts(
        Measurement(*device, accurate=accurate, wall=Interval(*wall, pairs=60) if wall else None)
    )
    assert (found.eager_layouts, found.final, found.use) == (wanted, True, ())
    assert bool(found.reason) != wanted


def whole_of(folder: Path) -> tuple[Task, str]:
    (found,) = capture(block, INPUTS, kit.options_in(folder), record_in=folder / "real")
    whole = graph_task(found.module.graph)
    assert isinstance(whole, Task)
    return whole, found.inputs


def test_both_choices_are_compiled_and_compared(
    tmp_path: Path, native_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurement itself, but for its clock."""
    whole, folder = whole_of(tmp_path)
    optimised: list[bool] = []
    real = GraphLowering.__init__

    def lowering(self: GraphLowering, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        optimised.append(self.layout_opt)

    def timed(_: Any, __: str, rounds: int, *___: Any) -> dict[str, dict[str, list[float]]]:
        return {"wall": {"plain": [1.2] * rounds, "spliced": [1.0] * rounds}}

    monkeypatch.setattr(GraphLowering, "__init__", lowering)
    monkeypatch.setattr(speed, "take_samples", timed)
    request = {"graph": whole.to_json(), "kernels": [], "inputs": folder, "eager_layouts": True}
    request |= {"static_inputs": None, "origins": []}
    request |= {"cache_dir": str(tmp_path / "cache"), "native_dir": str(native_dir)}
    request |= {"inductor": {}, "until": time.monotonic() + 500.0, "flags": all_flags(), "seed": 0}
    with config.patch(force_disable_caches=True):
        found = accept.run(request, lambda _: None)
    assert isinstance(found, Acceptance), found
    assert found.eager_layouts and found.speedup is not None and found.speedup.accurate
    assert found.speedup.on_real_inputs and optimised == [True, False]


def test_what_is_decided_is_kept(tmp_path: Path) -> None:
    whole, folder = whole_of(tmp_path)
    options = measuring(tmp_path)
    process = SearchProcess()
    try:
        asked = WholeGraph("name", whole, (), folder, eager_layouts=True)
        decision = SearchClient(options, process).accept(asked, 540.0)
    finally:
        process.stop()
    assert isinstance(decision, dict), decision
    assert decision["speedup"]["accurate"] and decision["use"] == []
    assert kit.cache_of(options).get_acceptance("name", kernel_set_digest(())) == decision
    assert decision == decision_of({**decision, "event": "result", "final": True})


def test_real_inputs_are_recorded_for_both_choices(tmp_path: Path) -> None:
    options = measuring(tmp_path)
    (found,) = capture(block, INPUTS, options, record_in=tmp_path / "real")
    graph = found.module.graph
    assert channels_last(graph)
    digests: list[set[str]] = []
    for keep in (False, True):
        with choosing():
            if keep:
                keep_eagers()
            refuses = Decides(kit.cache_of(options), "not today")
            digests.append({task.digest for task in offered(found.module, options, refuses)})
    assert digests[0] != digests[1]
    assert digests[0] | digests[1] <= set(found.recorded)


def offered(module: torch.fx.GraphModule, options: Options, asked: Decides) -> Sequence[Task]:
    """What the pass has searched in a graph."""
    opened = kernels.open_kernels(options.cache_dir)
    assert isinstance(opened, kernels.Kernels)
    KernelPass(options, opened, asked)(module.graph)
    return asked.searched


def test_explaining_shows_the_graph_as_it_will_be(tmp_path: Path) -> None:
    options = measuring(tmp_path, search="cached")
    wishes = {"cuda_agent.cache_dir": str(options.cache_dir), "cuda_agent.min_bytes": 0}
    before = explain(block, *INPUTS, options=wishes).graphs[0]
    (found,) = capture(block, INPUTS, options)
    decides = Decides(kit.cache_of(options), EAGERS)
    with choosing():
        offered(found.module, replace(options, search="search"), decides)
    after = explain(block, *INPUTS, options=wishes).graphs[0]
    assert not before.eager_layouts and after.eager_layouts
    assert before.digest != after.digest
    assert all(region.room is not None or region.reason for region in after.regions)
