"""What depends on weights alone: what is cut off, when it is computed anew, and what is never kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.parametrizations import weight_norm

from cuda_agent_backend import log, weights_changed
from cuda_agent_backend.backend import cuda_agent
from cuda_agent_backend.frontend import prepack
from cuda_agent_backend.frontend.prepack import Prepacked
from cuda_agent_backend.frontend.weight_split import Split, split_off_weights
from cuda_agent_backend.options import Options
from cuda_agent_backend.runtime import kernels
from cuda_agent_backend.tools.explain import explain

OPTIONS = {
    "cuda_agent.search": "cached",
    "cuda_agent.min_bytes": 0,
    "cuda_agent.prepack": True,
}
X = torch.randn(5, 32)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "_open", {})
    log.forget()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Prepacked]:
    """Every graph that was cut in two."""
    found: list[Prepacked] = []

    class Noted(Prepacked):
        def __init__(self, rest: Any, parts: Split) -> None:
            super().__init__(rest, parts)
            found.append(self)

    monkeypatch.setattr(prepack, "Prepacked", Noted)
    return found


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = weight_norm(nn.Linear(32, 48))
        self.second = nn.Parameter(torch.randn(48, 48))
        self.register_buffer("mask", torch.ones(48, 48).tril())

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) @ (self.second * self.mask)


def parts_of(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], static_inputs: tuple[int, ...]
) -> Split | None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    fake = FakeTensorMode()
    given = [fake.from_tensor(value) for value in inputs]
    with fake:
        return split_off_weights(make_fx(function)(*given), static_inputs)


def shapes(parts: Split | None) -> list[tuple[int, ...]]:
    return [tuple(value.shape) for value in parts.values] if parts else []


SQUARE = torch.randn(32, 32)


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (lambda x, w: x @ (w * 2), [(32, 32)]),
        (lambda x, w: x @ w, []),  # nothing is computed
        (lambda x, w: x @ w.t(), []),
        (lambda x, w: x @ w.exp().t(), [(32, 32)]),
        (lambda x, w: x + w.sum(0), [(32,)]),
        (lambda x, w: x[:, None] + w.exp().expand(5, 32, 32), [(32, 32)]),
        (lambda x, w: x.sum() + w.repeat(40, 40), []),  # larger than what it is computed from
        (lambda x, w: x @ torch.cat([w, w], 1), [(32, 64)]),  # but it has to be in memory
        (lambda x, w: x @ (w + torch.rand_like(w)), []),
        (lambda x, w: (x @ w, w * 2), []),  # the caller's
        (lambda x, w: (x @ w, (w * 2).t()), []),
        (lambda x, w: x @ w.topk(32)[0].exp(), [(32, 32)]),
        (lambda x, w: x * 2, []),
        (lambda x, w: x @ torch.arange(32.0).expand(32, 32), []),
    ],
)
def test_what_is_cut_off(function: Callable[..., Any], kept: list[tuple[int, ...]]) -> None:
    parts = parts_of(function, (X, SQUARE), (1,))
    assert shapes(parts) == kept
    if parts is not None:
        found = parts.rest(X, SQUARE, *parts.compute([SQUARE]))
        torch.testing.assert_close(found, function(X, SQUARE))


def test_a_weight_that_the_graph_changes_is_none() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        w.add_(1)
        return x @ (w * 2)

    assert parts_of(function, (X, SQUARE.clone()), (1,)) is None


def test_values_are_kept_until_a_weight_changes(made: list[Prepacked]) -> None:
    model = Masked().eval()
    compiled = torch.compile(model, backend=cuda_agent, options=OPTIONS)

    def same() -> int:
        torch.testing.assert_close(compiled(X), model(X))
        (graph,) = made
        return graph.times

    with torch.no_grad():
        assert [same(), same(), same()] == [1, 1, 1]
        model.second.mul_(2)
        assert [same(), same()] == [2, 2]
        model.load_state_dict({name: value + 0.1 for name, value in model.state_dict().items()})
        assert [same(), same()] == [3, 3]
        model.second = nn.Parameter(torch.randn(48, 48))
        assert [same(), same()] == [4, 4]
        model.second.data = torch.randn(48, 48)
        assert [same(), same()] == [5, 5]
        torch._foreach_add_([model.second, model.mask], 1.0)
        assert [same(), same()] == [6, 6]


def test_a_write_that_torch_does_not_count_has_to_be_told(made: list[Prepacked]) -> None:
    model = Masked().eval()
    compiled = torch.compile(model, backend=cuda_agent, options=OPTIONS)
    with torch.no_grad():
        before = compiled(X)
        model.second.data.mul_(2)
        torch.testing.assert_close(compiled(X), before)
        weights_changed()
        torch.testing.assert_close(compiled(X), model(X))
        torch.testing.assert_close(compiled(X), model(X))
    assert made[0].times == 2


def test_training_and_optimizer_steps_see_the_weights_as_they_are(made: list[Prepacked]) -> None:
    model = Masked()
    compiled = torch.compile(model, backend=cuda_agent, options=OPTIONS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(2):
        with torch.no_grad():
            torch.testing.assert_close(compiled(X), model(X))
        assert [graph.times for graph in made] == [step + 1]
        compiled(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(made) == 1, "graphs for training are not cut"


def test_weights_without_versions_are_never_kept(made: list[Prepacked]) -> None:
    with torch.inference_mode():
        model = Masked().eval()
        compiled = torch.compile(model, backend=cuda_agent, options=OPTIONS)
        for _ in range(2):
            torch.testing.assert_close(compiled(X), model(X))
            model.second.mul_(2)
    assert made[0].times == 2


def test_casts_of_autocast_are_kept(made: list[Prepacked]) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    compiled = torch.compile(model, backend=cuda_agent, options=OPTIONS)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            torch.testing.assert_close(compiled(X), model(X), atol=0.05, rtol=0.05)
    (graph,) = made
    assert graph.times == 1
    assert torch.bfloat16 in {value.dtype for value in graph._values}


def test_without_the_option_graphs_stay_whole(made: list[Prepacked]) -> None:
    model = Masked().eval()
    options = {name: value for name, value in OPTIONS.items() if not name.endswith("prepack")}
    with torch.no_grad():
        torch.compile(model, backend=cuda_agent, options=options)(X)
    assert not made


def test_what_is_explained_is_the_rest() -> None:
    model = Masked().eval()
    with torch.no_grad():
        whole = explain(model, X, options={**OPTIONS, "cuda_agent.prepack": False}).graphs
        rest = explain(model, X, options=OPTIONS).graphs
    assert len(rest[0].regions) < len(whole[0].regions)


def test_a_graph_that_is_prepacked_is_not_replayed(tmp_path: Path) -> None:
    from cuda_agent_backend.runtime.replayable import replay_is_wanted

    plain = Options(tmp_path, tmp_path)
    assert replay_is_wanted(plain) and not replay_is_wanted(
        Options(tmp_path, tmp_path, prepack=True)
    )


def test_threads_that_meet_a_change_compute_once(made: list[Prepacked]) -> None:
    model = Masked().eval()
    compiled = torch.compile(model, backend=cuda_agent, options=OPTIONS)
    found: list[Tensor] = []

    def call() -> None:
        with torch.no_grad():
            found.append(compiled(X))

    with torch.no_grad():
        compiled(X)
        model.second.mul_(2)
        expected = model(X)
    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8 and made[0].times == 2
    for one in found:
        torch.testing.assert_close(one, expected)


def test_a_failure_while_values_are_computed_leaves_none_behind() -> None:
    parts = parts_of(lambda x, w: x @ (w * 2), (X, SQUARE), (1,))
    assert parts is not None
    graph = Prepacked(lambda given: parts.rest(*given), parts)
    whole, weights = parts.weights.forward, SQUARE.clone()
    graph(X, weights)
    weights.add_(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.weights, "forward", lambda *_: (_ for _ in ()).throw(OSError("no")))
        with pytest.raises(OSError, match="no"):
            graph(X, weights)
    assert parts.weights.forward == whole
    torch.testing.assert_close(graph(X, weights), X @ (weights * 2))


@pytest.mark.gpu
def test_on_a_device_streams_and_recordings_see_weights_as_they_are(made: list[Prepacked]) -> None:
    model = Masked().eval().cuda()
    compiled = torch.compile(model, backend=cuda_agent, options=OPTIONS)
    x = X.cuda()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        other = torch.cuda.Stream()
        for _ in range(3):
            model.second.mul_(0.5)
            expected = model(x)
            compiled(x)
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                found = compiled(x)
            torch.cuda.synchronize()
            torch.testing.assert_close(found, expected)
        times, recording = made[0].times, torch.cuda.CUDAGraph()
        with torch.cuda.graph(recording):
            out = compiled(x)
        model.second.mul_(3)
        recording.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(out, model(x))
        assert made[0].times == times + 1
