"""Graphs that are recorded once and launched as one."""

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import splice_kit as kit
import torch
from torch import Tensor, nn
from torch._inductor import config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent_backend import backend
from cuda_agent_backend.acceptance import digests, speed
from cuda_agent_backend.acceptance import process as accept
from cuda_agent_backend.acceptance.digests import kernel_set_digest
from cuda_agent_backend.acceptance.rule import (
    REPLAY_MEDIAN,
    Acceptance,
    Measurement,
    decision_of,
    gains_at_least,
)
from cuda_agent_backend.acceptance.whole_graph import WholeGraph, graph_task
from cuda_agent_backend.hook import kernel_pass as hook
from cuda_agent_backend.runtime import cuda_graph as cudagraph
from cuda_agent_backend.runtime import kernels, replayable
from cuda_agent_backend.runtime.cuda_graph import CudaGraphCall
from cuda_agent_backend.runtime.graph_capture import Unrecordable, give_back, own_stream
from cuda_agent_backend.runtime.machine import all_flags
from cuda_agent_backend.runtime.replayable import (
    copied_bytes,
    dynamo_graph_name,
    dynamo_static_inputs,
    may_replay,
)
from cuda_agent_backend.tools import capture as capturing
from cuda_agent_backend.tools.capture import capture
from kernel_cache import KernelCache
from sandbox.memory.footprint import FRUGAL_BYTES
from sandbox.task.task import Task

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class HostRecording:
    """Does on the host what a CUDA graph does: the same call, on the same memory."""

    made: int = 0

    def __init__(self, call: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        type(self).made += 1
        self._call, self._inputs = call, list(inputs)
        self.outputs = call(*inputs)

    def replay(self) -> None:
        with torch.inference_mode():  # a CUDA graph asks no tensor for leave
            for place, value in zip(self.outputs, self._call(*self._inputs), strict=True):
                if place is not None:
                    place.copy_(value)


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_open", {})
    monkeypatch.setattr(HostRecording, "made", 0)


class Counted:
    """A call that counts itself."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.calls = call, 0

    def __call__(self, *inputs: Tensor) -> Any:
        self.calls += 1
        return self.call(*inputs)


def linear(x: Tensor, w: Tensor) -> list[Tensor | None]:
    return [x @ w, None, (x.t() * 2)]


def test_the_first_call_is_recorded_and_the_others_replayed() -> None:
    call, w = Counted(linear), torch.randn(4, 4)
    replayed = CudaGraphCall(call, (1,), HostRecording)
    for _ in range(4):
        x = torch.randn(3, 4)
        found, wanted = replayed(x, w), linear(x, w)
        assert found[1] is None
        torch.testing.assert_close(found[0], wanted[0])
        torch.testing.assert_close(found[2], wanted[2])
        assert found[2].stride() == wanted[2].stride()
    assert HostRecording.made == 1 and not replayed.reason
    assert call.calls == 2 + 1 + 3  # the first, its recording and its replay, then replays


def test_outputs_are_the_callers_and_stay_as_they_are() -> None:
    w = torch.randn(4, 4)
    replayed = CudaGraphCall(linear, (1,), HostRecording)
    given = [torch.randn(3, 4) for _ in range(4)]
    found = [replayed(x, w) for x in given]
    for x, own in zip(given, found, strict=True):
        torch.testing.assert_close(own[0], x @ w)
    assert len({own[0].data_ptr() for own in found}) == 4


def test_parameters_that_change_in_place_are_read_and_those_that_moved_are_recorded_anew() -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    replayed = CudaGraphCall(linear, (1,), HostRecording)
    for _ in range(3):
        replayed(x, w)
    w.mul_(3)
    torch.testing.assert_close(replayed(x, w)[0], x @ w)
    assert HostRecording.made == 1
    other = torch.randn(4, 4)
    torch.testing.assert_close(replayed(x, other)[0], x @ other)
    assert HostRecording.made == 2


def test_parameters_that_keep_moving_are_not_followed_for_ever() -> None:
    x, places = torch.randn(3, 4), [torch.randn(4, 4) for _ in range(30)]
    replayed = CudaGraphCall(linear, (1,), HostRecording)
    for w in places:
        torch.testing.assert_close(replayed(x, w)[0], x @ w)
    assert HostRecording.made == cudagraph.MOST_RECORDINGS and "keep moving" in replayed.reason


def changes(x: Tensor, w: Tensor) -> list[Tensor]:
    return [x.add_(1) @ w]


def gives_its_input(x: Tensor, w: Tensor) -> list[Tensor]:
    return [x @ w, w.t()]


def gives_one_twice(x: Tensor, w: Tensor) -> list[Tensor]:
    y = x @ w
    return [y, y[1:]]


def gives_the_same_elements(x: Tensor, w: Tensor) -> list[Tensor]:
    return [(x @ w).sum(0, keepdim=True).expand(3, 4)]


def gives_a_number(x: Tensor, w: Tensor) -> list[Any]:
    return [x @ w, 3]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (changes, "changes its inputs"),
        (gives_its_input, "share memory"),
        (gives_one_twice, "share memory"),
        (gives_the_same_elements, "elements of an output"),
        (gives_a_number, "an output is a int"),
        (lambda x, w: x @ w, "returns a Tensor"),
    ],
)
def test_what_copies_would_not_be_true_to_is_called_as_it_is(
    call: Callable[..., Any], reason: str
) -> None:
    replayed = CudaGraphCall(call, (1,), HostRecording)
    for _ in range(4):
        x, w = torch.randn(3, 4), torch.randn(4, 4)
        wanted = call(x.clone(), w)
        torch.testing.assert_close(list(replayed(x, w)), list(wanted))
    assert reason in replayed.reason


def test_what_cannot_be_recorded_is_called_as_it_is() -> None:
    def fails(*_: Any) -> Any:
        raise Unrecordable("not today")

    replayed, x, w = CudaGraphCall(linear, (1,), fails), torch.randn(3, 4), torch.randn(4, 4)
    for _ in range(3):
        torch.testing.assert_close(replayed(x, w)[0], x @ w)
    assert "not today" in replayed.reason


def test_a_graph_that_found_no_memory_is_recorded_once_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, short = [1000.0], [True]
    monkeypatch.setattr(cudagraph, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def record(call: Callable[..., Any], inputs: Sequence[Tensor]) -> HostRecording:
        if short[0]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return HostRecording(call, inputs)

    replayed, x, w = CudaGraphCall(linear, (1,), record), torch.randn(3, 4), torch.randn(4, 4)
    for _ in range(3):
        torch.testing.assert_close(replayed(x, w)[0], x @ w)
    assert replayed._recordings == 1 and not replayed.reason
    short[0] = False
    clock[0] += 3600.0
    for _ in range(3):
        torch.testing.assert_close(replayed(x, w)[0], x @ w)
    assert HostRecording.made == 1 and not replayed.reason


def test_memory_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(cudagraph, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def record(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    replayed, x, w = CudaGraphCall(linear, (1,), record), torch.randn(3, 4), torch.randn(4, 4)
    for _ in range(20):
        torch.testing.assert_close(replayed(x, w)[0], x @ w)
        clock[0] += 3600.0
    assert replayed._recordings == cudagraph.MOST_RECORDINGS
    assert replayed.reason == "memory was short too often"


def test_a_replay_that_does_not_give_what_a_call_does_is_not_used() -> None:
    class Empty(HostRecording):
        def replay(self) -> None: ...

    def fresh(x: Tensor, w: Tensor) -> list[Tensor]:
        return [x @ w + next(counts)]

    counts, x, w = iter(range(100)), torch.randn(3, 4), torch.randn(4, 4)
    replayed = CudaGraphCall(fresh, (1,), Empty)
    found = [replayed(x, w)[0] for _ in range(3)]
    assert "does not give what a call does" in replayed.reason
    torch.testing.assert_close(found, [x @ w, x @ w + 2, x @ w + 3])


def test_results_that_differ_by_rounding_are_alike_and_others_are_not() -> None:
    x = torch.randn(100)
    x[3] = float("nan")
    assert cudagraph._alike(x, x + 1e-5) and not cudagraph._alike(x, x.flip(0))
    assert cudagraph._alike(None, None) and not cudagraph._alike(None, x)
    whole = torch.arange(5)
    assert cudagraph._alike(whole, whole) and not cudagraph._alike(whole, whole + 1)


@pytest.mark.parametrize("turned", [False, True])
def test_large_results_are_compared_some_elements_at_a_time(
    turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(6, 7).t() if turned else torch.randn(6, 7)
    near, far = x * 1.001, x.clone()
    far[-1, -1] += 100
    wanted = [cudagraph._alike(other, x) for other in (near, far, x)]
    monkeypatch.setattr(cudagraph, "CHUNK", 5)
    assert [cudagraph._alike(other, x) for other in (near, far, x)] == wanted == [True, False, True]
    number = torch.tensor(2.0)
    assert cudagraph._alike(number, number) and not cudagraph._alike(number, number + 1)


def test_while_another_graph_is_recorded_calls_are_as_they_are() -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    replayed = CudaGraphCall(linear, (1,), HostRecording)
    with cudagraph._recording:
        for _ in range(3):
            torch.testing.assert_close(replayed(x, w)[0], x @ w)
    assert HostRecording.made == 0 and not replayed.reason
    replayed(x, w)
    torch.testing.assert_close(replayed(x, w)[0], x @ w)
    assert HostRecording.made == 1


def test_inputs_that_are_no_tensors_are_not_recorded() -> None:
    replayed = CudaGraphCall(lambda x, n: [x * n], (), HostRecording)
    for n in range(3):
        assert float(replayed(torch.ones(1), n)[0]) == n
    assert "not tensors" in replayed.reason and HostRecording.made == 0
    nothing = CudaGraphCall(lambda: [torch.ones(2)], (), HostRecording)
    assert torch.equal(nothing()[0], torch.ones(2)) and nothing.reason


def test_inference_mode_and_its_end_change_nothing() -> None:
    w = torch.randn(4, 4)
    replayed = CudaGraphCall(linear, (1,), HostRecording)
    for inside in (True, True, True, False, True, False):
        with torch.inference_mode(inside):
            x = torch.randn(3, 4)
            torch.testing.assert_close(replayed(x, w)[0], x @ w)
    assert not replayed.reason


def test_threads_get_their_own_results() -> None:
    w = torch.randn(4, 4)
    replayed = CudaGraphCall(linear, (1,), HostRecording)
    wrong: list[float] = []

    def work(value: float) -> None:
        for _ in range(200):
            x = torch.full((3, 4), value)
            if not torch.equal(replayed(x, w)[2], (x * 2).t()):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and HostRecording.made == 1


# Which graphs


def several(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.relu(x @ w)
    return x


def of_cuda(call: Callable[..., Any], *shapes: tuple[int, ...]) -> torch.fx.Graph:
    with FakeTensorMode():
        inputs = [torch.empty(shape, device="cuda") for shape in shapes]
        return make_fx(call)(*inputs).graph


def changes_within(x: Tensor, w: Tensor) -> Tensor:
    y = several(x, w)
    x.add_(y)
    return y


def to_the_host(x: Tensor, w: Tensor) -> Tensor:
    return several(x, w).cpu() + 1


def at_random(x: Tensor, w: Tensor) -> Tensor:
    return several(torch.bernoulli(x), w)


def once(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (several, True),
        (changes_within, False),
        (to_the_host, False),
        (at_random, False),
        (once, False),
    ],
)
def test_graphs_that_do_the_same_each_time_in_several_launches(
    call: Callable[..., Any], wanted: bool
) -> None:
    assert may_replay(of_cuda(call, (8, 8), (8, 8))) is wanted


def test_inputs_beside_parameters_are_what_a_replay_copies() -> None:
    graph = of_cuda(several, (8, 8), (8, 8))
    assert [copied_bytes(graph, static) for static in ((), (1,), (0, 1))] == [512, 256, 0]


@pytest.mark.parametrize(
    ("rows", "wanted"), [(FRUGAL_BYTES // 32 - 1, (1,)), (FRUGAL_BYTES // 32, None)]
)
def test_what_takes_longer_to_copy_than_to_launch_is_not_replayed(
    rows: int, wanted: tuple[int, ...] | None, tmp_path: Path
) -> None:
    wishes = kit.options_in(tmp_path, acceptance="measure", cudagraphs=True)
    made = hook.KernelPass(wishes, kit.open_kernels(wishes.cache_dir), static_inputs=(1,))  # type: ignore[arg-type]
    graph = of_cuda(several, (rows, 8), (8, 8))
    assert made._static_inputs_to_replay(graph) == wanted


def test_graphs_on_the_host_are_not_replayed() -> None:
    assert not may_replay(make_fx(several)(torch.ones(8, 8), torch.ones(8, 8)).graph)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return several(x, self.w)


def graph_of(model: Callable[..., Any], *inputs: Tensor, grad: bool = False) -> Any:
    seen: list[Any] = []
    torch._dynamo.reset()

    def take(gm: Any, _: Any) -> Any:
        seen.append((dynamo_static_inputs(gm), dynamo_graph_name(gm, {"max_autotune": False})))
        return gm.forward

    with torch.set_grad_enabled(grad):
        torch.compile(model, backend=take)(*inputs)
    torch._dynamo.reset()
    (found,) = seen
    return found


def test_graphs_have_names_by_what_they_do_and_how_they_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))
    x = torch.randn(4, 8)
    (static_inputs, name), same = graph_of(Net(), x), graph_of(Net(), x)
    assert static_inputs == (1,) or static_inputs == (0,)
    assert same == (static_inputs, name)
    others = [graph_of(Net(), torch.randn(5, 8)), graph_of(Net(), x, grad=True)]
    others.append(graph_of(lambda x: several(x, x.new_ones(8, 8)), x))
    assert len({name, *(other for _, other in others)}) == 4


def test_a_graph_without_inputs_has_none_that_stay_and_is_compiled(tmp_path: Path) -> None:
    def constant() -> Tensor:
        return torch.tensor([3, 2]) * 2

    torch._dynamo.reset()
    options = {"cuda_agent.search": "cached", "cuda_agent.cache_dir": str(tmp_path)}
    compiled = torch.compile(constant, backend="cuda_agent", options=options)
    assert torch.equal(compiled(), constant())


def test_wrapped_tensors_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))
    monkeypatch.setattr(replayable, "_wraps", lambda _: True)
    assert graph_of(Net(), torch.randn(4, 8))[0] is None


def test_a_decision_that_cannot_be_read_replays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = kernels.open_kernels(tmp_path)
    assert isinstance(opened, kernels.Kernels)

    def fails(_: str) -> str:
        raise RuntimeError("no device")

    monkeypatch.setattr(digests, "arch_of", fails)
    assert not hook.KernelPass(kit.options_in(tmp_path), opened).is_replayed("name")


def test_a_graph_on_the_host_has_no_inputs_that_stay() -> None:
    assert graph_of(Net(), torch.randn(4, 8))[0] is None


# From the measurement to the call


class Decides:
    """A searcher that measures nothing: it gives and keeps a decision."""

    def __init__(self, cache: KernelCache, replays: bool) -> None:
        self.cache, self.asked = cache, list[WholeGraph]()
        self.decision = {"use": [], "eager_layouts": False, "replay": replays}

    def search(self, *_: Any) -> dict[str, Any]:
        return {}

    def enqueue(self, *_: Any) -> None: ...

    def accept(self, whole: WholeGraph, _: float) -> dict[str, Any] | str:
        self.asked.append(whole)
        self.cache.put_acceptance(whole.name, kernel_set_digest(whole.keys), self.decision)
        return self.decision


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the device."""
    monkeypatch.setattr(hook, "may_replay", lambda _: True)
    monkeypatch.setattr(digests, "arch_of", lambda _: "sm_90a")
    monkeypatch.setattr(backend, "dynamo_static_inputs", lambda _: (1,))
    monkeypatch.setattr(backend, "CudaGraphCall", lambda c, s: CudaGraphCall(c, s, HostRecording))


def run_with(options: Any, searcher: Any, **patches: Any) -> Any:
    made = kit.backend_for(options, searcher=searcher)
    torch._dynamo.reset()
    with torch.no_grad(), config.patch(**patches):
        compiled = torch.compile(several, backend=made)
        for _ in range(4):
            x, w = torch.randn(8, 8), torch.randn(8, 8)
            torch.testing.assert_close(compiled(x, w), several(x, w))
    return made.passes[0]


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("replays", [True, False])
def test_a_graph_is_replayed_where_it_was_measured_to_be_faster(
    replays: bool, tmp_path: Path
) -> None:
    options = kit.options_in(tmp_path, search="search", acceptance="measure")
    asked = Decides(kit.cache_of(options), replays)
    found = run_with(options, asked, force_disable_caches=True)
    assert [whole.static_inputs for whole in asked.asked] == [()] and not asked.asked[0].keys
    assert found.reports[0].replayed == replays == ("replayed" in found.reports[0].summary())
    assert bool(HostRecording.made) == replays
    before = HostRecording.made
    cached = kit.options_in(tmp_path, acceptance="measure")
    assert run_with(cached, None, force_disable_caches=True).reports[0].replayed == replays
    assert (HostRecording.made > before) == replays


@pytest.mark.usefixtures("as_on_cuda")
def test_a_decision_holds_for_what_it_was_made_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without kernels nothing else in its name says for which machine, flags, options and parameters it is."""
    options = kit.options_in(tmp_path, search="search", acceptance="measure")
    asked = Decides(kit.cache_of(options), True)

    def again(wishes: Any = options) -> int:
        before = len(asked.asked)
        run_with(wishes, asked, force_disable_caches=True)
        return len(asked.asked) - before

    assert [again(), again()] == [1, 0]
    assert again(replace(options, inductor={"max_autotune": False})) == 1
    monkeypatch.setattr(hook, "aot_static_inputs", lambda: (0,))
    assert again() == 1
    monkeypatch.setattr(digests, "arch_of", lambda _: "sm_80")
    assert again() == 1
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark)
    assert again() == 1


@pytest.mark.usefixtures("as_on_cuda")
def test_kernels_are_measured_launched_where_the_graph_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "dynamo_static_inputs", lambda _: None)
    options = kit.options_in(tmp_path, search="search", acceptance="measure")
    asked = Decides(kit.cache_of(options), True)
    assert not run_with(options, asked, force_disable_caches=True).reports[0].replayed
    assert not asked.asked and not HostRecording.made


@pytest.mark.usefixtures("as_on_cuda")
def test_a_graph_whose_code_torch_kept_is_replayed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    options = kit.options_in(tmp_path, search="search", acceptance="measure")
    run_with(options, Decides(kit.cache_of(options), True))
    cached = kit.options_in(tmp_path, acceptance="measure")
    reports = [bool(run_with(cached, None).reports) for _ in range(3)]
    before = HostRecording.made
    last = run_with(cached, None)
    assert reports[0] and not last.reports, "torch's cache did not answer"
    assert HostRecording.made > before


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize(
    ("wishes", "patches"),
    [
        ({"acceptance": "trust"}, {}),
        ({"cudagraphs": False}, {}),
        ({"triton__cudagraphs": False}, {}),
        ({}, {"triton.cudagraphs": True}),
    ],
    ids=["trusted", "unwanted", "not Inductor's either", "Inductor's own"],
)
def test_replays_are_not_measured_where_that_is_not_wanted(
    wishes: dict[str, Any], patches: dict[str, Any], tmp_path: Path
) -> None:
    options = kit.options_in(tmp_path, **{"search": "search", "acceptance": "measure", **wishes})
    asked = Decides(kit.cache_of(options), True)
    run_with(options, asked, **patches, force_disable_caches=True)
    assert not asked.asked and not HostRecording.made


@pytest.mark.parametrize("faster", [True, False])
def test_the_recording_is_measured_against_the_launches(
    faster: bool, tmp_path: Path, native_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurement itself, but for its clock and the device."""
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    assert capture(several, (x, w), kit.options_in(tmp_path))[0].static_inputs is None
    monkeypatch.setattr(capturing, "dynamo_static_inputs", lambda _: ())
    (found,) = capture(several, (x, w), kit.options_in(tmp_path), record_in=tmp_path / "real")
    assert found.static_inputs == ()
    whole = graph_task(found.module.graph)
    assert isinstance(whole, Task)

    def timed(_: Any, __: str, rounds: int, *___: Any) -> dict[str, dict[str, list[float]]]:
        ours = 1.0 if faster else 1.19
        return {"wall": {"plain": [1.2] * rounds, "spliced": [ours] * rounds}}

    monkeypatch.setattr(speed, "take_samples", timed)
    monkeypatch.setattr(cudagraph, "CudaRecording", HostRecording)
    request = {"graph": whole.to_json(), "kernels": [], "inputs": found.inputs}
    request |= {"cache_dir": str(tmp_path / "cache"), "native_dir": str(native_dir)}
    request |= {"inductor": {}, "until": time.monotonic() + 500.0, "flags": all_flags(), "seed": 0}
    request |= {"eager_layouts": False, "static_inputs": [], "origins": []}
    with config.patch(force_disable_caches=True):
        decided = accept.run(request, lambda _: None)
    assert isinstance(decided, Acceptance), decided
    assert decided.replay == faster and decided.final and not decided.use
    assert decided.replayed is not None and decided.replayed.accurate
    assert HostRecording.made
    assert decision_of(decided.to_json())["replay"] == faster


@pytest.mark.parametrize(
    ("measured", "wanted"),
    [
        (Measurement(1.06, 1.05, 1.07, accurate=True), True),
        (Measurement(1.04, 1.03, 1.05, accurate=True), False),
        (Measurement(1.50, 1.40, 1.60, accurate=False), False),
    ],
)
def test_what_a_recording_must_bring(measured: Measurement, wanted: bool) -> None:
    assert gains_at_least(measured, REPLAY_MEDIAN) is wanted


# On the device


@pytest.mark.gpu
@on_gpu
def test_a_cuda_graph_gives_what_the_launches_give() -> None:
    w = torch.randn(64, 64, device="cuda")
    replayed = CudaGraphCall(lambda x, w: [several(x, w), x.t() * 2], (1,))
    kept = []
    for _ in range(5):
        x = torch.randn(32, 64, device="cuda")
        kept.append((replayed(x, w), [several(x, w), x.t() * 2]))
    w.mul_(0.5)
    x = torch.randn(32, 64, device="cuda")
    kept.append((replayed(x, w), [several(x, w), x.t() * 2]))
    other = torch.randn(64, 64, device="cuda")
    kept.append((replayed(x, other), [several(x, other), x.t() * 2]))
    for found, wanted in kept:
        torch.testing.assert_close(found, wanted)
    assert not replayed.reason


@pytest.mark.gpu
@on_gpu
def test_streams_do_not_meet_in_a_recording() -> None:
    w = torch.randn(512, 512, device="cuda") / 512**0.5
    replayed = CudaGraphCall(lambda x, w: [several(x, w)], (1,))
    streams = [torch.cuda.Stream() for _ in range(3)]
    inputs = [torch.randn(512, 512, device="cuda") for _ in streams]
    wanted = [several(x, w) for x in inputs]
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for stream, x in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                found.append(replayed(x, w)[0])
        torch.cuda.synchronize()
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs)
    assert not replayed.reason


@pytest.mark.gpu
@on_gpu
def test_a_recording_keeps_the_work_space_of_libraries() -> None:
    """Torch frees all of it before and after each CUDA graph of torch.compile. There are more recordings than torch has
    streams to hand out."""
    x, w = torch.randn(8, 1 << 16, device="cuda"), torch.randn(1 << 16, 8, device="cuda") / 256
    replayed = [
        CudaGraphCall(lambda x, w: [torch.tanh(x @ w) @ w.t() @ w], (1,)) for _ in range(40)
    ]
    wanted = torch.tanh(x @ w) @ w.t() @ w
    for one in replayed:
        for _ in range(2):
            torch.testing.assert_close(one(x, w)[0], wanted, rtol=1e-3, atol=1e-3)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    others = [torch.zeros(1 << 23, device="cuda") for _ in range(8)]
    for one in replayed:
        assert not one.reason
        torch.testing.assert_close(one(x, w)[0], wanted, rtol=1e-3, atol=1e-3)
    assert not any(bool(other.any()) for other in others)


@pytest.mark.parametrize("error", [0, 201])
def test_without_a_stream_nothing_is_recorded(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimpleNamespace(cuStreamCreate=lambda found, flags: error)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    with pytest.raises(Unrecordable, match=f"CUDA error {error}"):
        own_stream(torch.device("cuda", 0))


@pytest.mark.gpu
@on_gpu
def test_within_somebody_elses_recording_a_graph_is_called_as_it_is() -> None:
    w, x = torch.randn(64, 64, device="cuda"), torch.randn(32, 64, device="cuda")
    replayed = CudaGraphCall(lambda x, w: [several(x, w)], (1,))
    for _ in range(3):
        replayed(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = replayed(x, w)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(found, several(x, w))


@pytest.mark.parametrize("ended", [False, True])
def test_a_pool_is_freed_once(ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def end(index: int, pool: object) -> None:
        if ended:
            raise RuntimeError("not currently recording")
        done.append("end")

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda index, pool: done.append("release"))
    assert give_back((0, 1), 0) is not ended
    assert done == ([] if ended else ["end", "release"])


@pytest.mark.gpu
@on_gpu
def test_after_a_recording_that_failed_work_goes_where_it_went() -> None:
    def waits(x: Tensor) -> list[Tensor]:
        return [x * float(x.sum())] if torch.cuda.is_current_stream_capturing() else [x * x.sum()]

    before, x = torch.cuda.current_stream(), torch.rand(4, device="cuda")
    replayed = CudaGraphCall(waits, ())
    for _ in range(3):
        torch.testing.assert_close(replayed(x)[0], x * x.sum())
        assert torch.cuda.current_stream() == before
    assert replayed.reason
    torch.manual_seed(0)
    drawn = torch.rand(4, device="cuda")
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(4, device="cuda"))


def active_bytes() -> int:
    return torch.cuda.memory_stats()["active_bytes.all.current"]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("fails", ["waits", "raises", "is empty"])
def test_after_a_recording_that_failed_memory_is_used_again(fails: str) -> None:
    def call(x: Tensor) -> list[Tensor]:
        if not torch.cuda.is_current_stream_capturing():
            return [x + 1]
        if fails == "is empty":
            return [x]
        y = x * x
        if fails == "raises":
            raise ValueError("not today")
        return [y * float(y.sum())]

    x, side = torch.rand(1 << 20, device="cuda"), torch.cuda.Stream()
    replayed = CudaGraphCall(call, ())
    for _ in range(3):
        torch.testing.assert_close(replayed(x)[0], x + 1)
    assert replayed.reason
    torch.cuda.synchronize()
    before = active_bytes()
    large = torch.empty(1 << 24, device="cuda")
    large.record_stream(side)
    del large
    torch.cuda.synchronize()
    small = torch.empty(
        1, device="cuda"
    )  # when torch asks for memory, it looks what other streams have done with
    assert active_bytes() - before <= 4096 and small.is_cuda
    torch.cuda.empty_cache()
    again = CudaGraphCall(lambda x: [torch.tanh(x * x).sum(0, keepdim=True)], ())
    for _ in range(3):
        again(x)
    assert not again.reason


@pytest.mark.multi_gpu
def test_each_device_has_recordings_of_its_own() -> None:
    for number in (0, 1, 0):
        with torch.cuda.device(number):
            w = torch.randn(64, 64, device="cuda")
            replayed = CudaGraphCall(lambda x, w: [several(x, w)], (1,))
            for _ in range(5):
                x = torch.randn(32, 64, device="cuda")
                torch.testing.assert_close(replayed(x, w)[0], several(x, w))
            assert not replayed.reason
            with torch.cuda.device(1 - number):
                torch.testing.assert_close(replayed(x, w)[0], several(x, w))


@pytest.mark.gpu
@on_gpu
def test_threads_may_record_at_once() -> None:
    """Torch's default generator cannot be drawn from while any thread records: each has one of its own."""

    def work(number: int) -> None:
        own = torch.Generator("cuda").manual_seed(number)
        w = torch.randn(64, 64, device="cuda", generator=own)
        replayed = CudaGraphCall(lambda x, w: [several(x, w)], (1,))
        for _ in range(20):
            x = torch.randn(32, 64, device="cuda", generator=own)
            torch.testing.assert_close(replayed(x, w)[0], several(x, w), atol=1e-4, rtol=0)
        assert not replayed.reason

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, number) for number in range(4)]:
            done.result()


@pytest.mark.gpu
@on_gpu
def test_what_waits_for_the_device_is_not_recorded() -> None:
    replayed = CudaGraphCall(lambda x: [x * float(x.sum())], ())
    for _ in range(4):
        x = torch.rand(4, device="cuda")
        torch.testing.assert_close(replayed(x)[0], x * x.sum())
    assert replayed.reason
    torch.testing.assert_close(torch.ones(4, device="cuda").sum().item(), 4.0)


@pytest.mark.gpu
@on_gpu
def test_a_small_network_is_replayed_end_to_end(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(12)))
    model.cuda().eval()
    options = {
        "cuda_agent.cache_dir": str(tmp_path / "kernels"),
        "cuda_agent.native_dir": str(tmp_path / "native"),
        "cuda_agent.budget_s": 120.0,
    }
    compiled = torch.compile(model, backend="cuda_agent", options=options)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(16, 64, device="cuda")
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    from cuda_agent_backend.tools.explain import explain

    with torch.no_grad():
        (graph,) = explain(model, x, options={**options, "cuda_agent.search": "cached"}).graphs
    assert graph.replayed, graph.acceptance
