"""Recurrent modules do not break our graphs."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import splice_kit as kit
import torch
from torch import Tensor, nn
from torch._dynamo import config
from torch._dynamo.exc import Unsupported
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from cuda_agent_backend import backend
from cuda_agent_backend.acceptance.whole_graph import graph_task
from cuda_agent_backend.codegen import api, covered_task
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.frontend import recurrent_modules as recurrent
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.partition.estimate import saving
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.runtime import kernels
from cuda_agent_backend.runtime.replayable import may_replay
from cuda_agent_backend.tools.capture import capture
from cuda_agent_backend.tools.explain import explain
from sandbox.accuracy.input_bounds import input_bounds
from sandbox.accuracy.inputs import make_inputs
from sandbox.graph.recurrent_ops import operator_of
from sandbox.plan.candidate import Candidate
from sandbox.task.task import Task


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "_open", {})
    torch._dynamo.reset()
    with inductor_config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


class Net(nn.Module):
    """A recurrent module between others."""

    def __init__(self, kind: type[nn.RNNBase], **form: Any) -> None:
        super().__init__()
        self.core = kind(5, 8, batch_first=True, **form)
        self.head = nn.Linear(16 if form.get("bidirectional") else 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.head(self.core(x * 2)[0])) + 1


def compiled(model: Any, folder: Path, fullgraph: bool = True) -> Any:
    options = {"cuda_agent.search": "cached", "cuda_agent.cache_dir": str(folder)}
    return torch.compile(model, backend="cuda_agent", options=options, fullgraph=fullgraph)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("form", [{}, {"num_layers": 2}, {"bidirectional": True, "bias": False}])
def test_a_recurrent_module_is_one_operator_of_one_graph(
    kind: type[nn.RNNBase], form: dict[str, Any], tmp_path: Path
) -> None:
    model = Net(kind, **form).eval()
    mark_as_ours = compiled(model, tmp_path)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(4, 6, 5)
            torch.testing.assert_close(mark_as_ours(x), model(x))
    (found,) = capture(model, (torch.randn(4, 6, 5),), kit.options_in(tmp_path))
    names = [str(node.target) for node in found.module.graph.nodes]
    assert sum(name.startswith("cuda_agent.") for name in names) == 1
    assert isinstance(graph_task(found.module.graph), Task)


def test_a_sequence_without_a_batch_and_given_states(tmp_path: Path) -> None:
    model = nn.LSTM(5, 8).eval()
    mark_as_ours = compiled(model, tmp_path)
    with torch.no_grad():
        x, states = torch.randn(6, 5), (torch.randn(1, 8), torch.randn(1, 8))
        torch.testing.assert_close(mark_as_ours(x, states), model(x, states))


def test_with_other_backends_graphs_break_as_ever() -> None:
    model = Net(nn.LSTM).eval()
    with torch.no_grad(), pytest.raises(Unsupported):
        torch.compile(model, backend="inductor", fullgraph=True)(torch.randn(4, 6, 5))
    assert not config.allow_rnn


def test_with_gradients_they_break_and_learn_as_ever(tmp_path: Path) -> None:
    model, x = Net(nn.GRU), torch.randn(4, 6, 5)
    with pytest.raises(Unsupported):
        compiled(model, tmp_path)(x)
    torch._dynamo.reset()
    compiled(model, tmp_path, fullgraph=False)(x).sum().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(found, [p.grad for p in model.parameters()])


def test_under_autocast_they_break_as_ever(tmp_path: Path) -> None:
    # Without AVX-512 torch has no LSTM of its own in bfloat16.
    core = nn.LSTM if torch.ops.mkldnn._is_mkldnn_bf16_supported() else nn.GRU
    model, x = Net(core).eval(), torch.randn(4, 6, 5)
    mark_as_ours = compiled(model, tmp_path, fullgraph=False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(mark_as_ours(x), model(x))
    torch._dynamo.reset()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), pytest.raises(Unsupported):
        compiled(model, tmp_path)(x)


class Deep(Net):
    def __init__(self) -> None:
        super().__init__(nn.LSTM, num_layers=2, dropout=0.5)


class Packed(Net):
    def __init__(self) -> None:
        super().__init__(nn.GRU)

    def forward(self, x: Tensor) -> Tensor:
        packed = pack_sequence([x[0], x[1, :3]])
        return self.head(pad_packed_sequence(self.core(packed)[0], batch_first=True)[0])


def test_with_dropout_they_break_as_ever(tmp_path: Path) -> None:
    model, x = Deep().train(), torch.randn(4, 6, 5)
    mark_as_ours = compiled(model, tmp_path, fullgraph=False)
    with torch.no_grad():
        torch.manual_seed(0)
        found = mark_as_ours(x)
        torch.manual_seed(0)
        torch.testing.assert_close(found, model(x))
        assert not torch.equal(mark_as_ours(x), mark_as_ours(x))
        torch._dynamo.reset()
        with pytest.raises(Unsupported):
            compiled(model, tmp_path)(x)
        model.eval()
        torch.testing.assert_close(compiled(model, tmp_path)(x), model(x))


def test_what_calls_torchs_function_itself_learns_as_ever(tmp_path: Path) -> None:
    module = nn.GRU(5, 8)
    weights = [w.detach().clone().requires_grad_() for w in module._flat_weights]

    def call(x: Tensor, *weights: Tensor) -> Tensor:
        zero = x.new_zeros(1, 6, 8)
        return torch.gru(x, zero, list(weights), True, 1, 0.0, False, False, False)[0]

    x = torch.randn(4, 6, 5)
    compiled(call, tmp_path)(x, *weights).sum().backward()
    found = [w.grad for w in weights]
    again = [w.detach().clone().requires_grad_() for w in weights]
    call(x, *again).sum().backward()
    torch.testing.assert_close(found, [w.grad for w in again])


def test_wrong_options_are_errors_there_too(tmp_path: Path) -> None:
    packed = {"cuda_agent.nonsense": 1}
    mark_as_ours = torch.compile(Net(nn.LSTM).eval(), backend="cuda_agent", options=packed)
    with torch.no_grad(), pytest.raises(Exception, match="nonsense"):
        mark_as_ours(torch.randn(4, 6, 5))


class OfPacked(Net):
    def __init__(self) -> None:
        super().__init__(nn.LSTM)

    def forward(self, x: PackedSequence) -> Tensor:
        return self.head(self.core(x)[1][0])


@pytest.mark.parametrize("kind", [Packed, OfPacked])
def test_packed_sequences_give_what_they_gave_and_break_graphs_as_ever(
    kind: type[Net], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(recurrent, "_compiles_ours", lambda: asked.append(True))
    model, x = kind().eval(), torch.randn(2, 6, 5)  # type: ignore[call-arg]
    given = x if kind is Packed else pack_sequence([x[0], x[1, :3]])
    mark_as_ours = compiled(model, tmp_path, fullgraph=False)
    with torch.no_grad():
        torch.testing.assert_close(mark_as_ours(given), model(given))
    assert not asked


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with config.patch(allow_rnn=True):
        recurrent.trace_through()
        assert config.allow_rnn is True
    with config.patch(allow_rnn=False):
        recurrent.trace_through()
        assert isinstance(config.allow_rnn, recurrent._OursOnly) and not config.allow_rnn
        monkeypatch.setattr(recurrent, "_compiles_ours", lambda: True)
        with torch.no_grad():
            assert config.allow_rnn
        assert not config.allow_rnn


def test_to_torch_the_setting_is_what_it_was(tmp_path: Path) -> None:
    with config.patch(allow_rnn=False):
        recurrent.trace_through()
        scope: dict[str, Any] = {}
        exec(
            f"import torch\n{config.codegen_config()}", scope
        )  # what torch writes to reproduce a fault
        assert pickle.loads(pickle.dumps(config.allow_rnn)) is False
        assert json.loads(json.dumps(config.allow_rnn)) == 0
        config.load_config(config.save_config())


def test_without_the_cache_a_graph_is_whole_too(tmp_path: Path) -> None:
    model = Net(nn.LSTM).eval()
    wishes = {"cuda_agent.cache_dir": "/proc/none", "cuda_agent.search": "cached"}
    mark_as_ours = torch.compile(model, backend="cuda_agent", options=wishes, fullgraph=True)
    with torch.no_grad():
        x = torch.randn(4, 6, 5)
        torch.testing.assert_close(mark_as_ours(x), model(x))


def test_the_backend_is_known_for_ours() -> None:
    found = torch._dynamo.backends.registry.lookup_backend("cuda_agent")
    assert getattr(found, recurrent.OURS, False) and found is backend.cuda_agent


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_modules_on_a_gpu(
    kind: type[nn.RNNBase], tmp_path: Path, exact_cudnn: None
) -> None:
    """From the model to a kernel, or to what eager runs where none wins; replayed or not."""
    model = Net(kind, num_layers=2).eval().cuda()
    options = {
        "cuda_agent.cache_dir": str(tmp_path / "kernels"),
        "cuda_agent.native_dir": str(tmp_path / "native"),
        "cuda_agent.budget_s": 120.0,
        "cuda_agent.min_bytes": 0,
    }
    mark_as_ours = torch.compile(model, backend="cuda_agent", options=options, fullgraph=True)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(4, 60, 5, device="cuda")
            torch.testing.assert_close(mark_as_ours(x), model(x), rtol=1e-4, atol=1e-5)
        (graph,) = explain(model, x, options={**options, "cuda_agent.search": "cached"}).graphs
    layer = [r for r in graph.regions if set(r.operators) & {"lstm", "gru", "rnn_tanh"}]
    assert len(layer) == 1 and layer[0].status in ("hit", "dropped", "negative"), layer


SIZES = (3, 5, 32, 64)
"""Sequences, steps, features and units."""


def shapes(layers: int) -> list[tuple[int, ...]]:
    """Of x, h, c and the weights."""
    batch, steps, features, units = SIZES
    found: list[tuple[int, ...]] = [(batch, steps, features), *2 * [(layers, batch, units)]]
    for layer in range(layers):
        gates = 4 * units
        found += [(gates, units if layer else features), (gates, units), (gates,), (gates,)]
    return found


def stacked(layers: int) -> torch.fx.Graph:
    """A fake LSTM of so many layers on a GPU, between other operators."""
    lstm = operator_of("lstm")

    def call(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        y, last, _ = lstm(x * 2, h, c, list(weights), True, layers, False, True)
        return torch.relu(y) + 1, last

    with FakeTensorMode():
        inputs = [torch.empty(shape, device="cuda") for shape in shapes(layers)]
        return make_fx(call)(*inputs).graph


@pytest.mark.parametrize(("layers", "inputs"), [(1, 7), (2, 11), (6, 27)])
def test_a_layer_on_a_gpu_is_a_region_of_its_own_whatever_it_reads(
    layers: int, inputs: int
) -> None:
    graph = stacked(layers)
    (region,) = [r for r in partition(graph) if r.nodes[0].target is operator_of("lstm")]
    assert region.reason is None and len(region.inputs) == inputs and len(region.outputs) == 2
    form = canonical(region.nodes, region.outputs, region.target)
    assert isinstance(form, Canonical)
    assert [node.op for node in form.task.nodes] == ["cuda_agent.lstm.default"]
    assert saving(region) == max(saving(r) for r in partition(graph))
    assert may_replay(graph)


def test_from_a_graph_to_a_kernel_that_gives_what_eager_gives(tmp_path: Path) -> None:
    """On a GPU's emulator."""
    (region,) = [r for r in partition(stacked(2)) if r.nodes[0].target is operator_of("lstm")]
    form = canonical(region.nodes, region.outputs, region.target)
    assert isinstance(form, Canonical)
    analysis = api.analyse(form.task)
    assert isinstance(analysis, covered_task.Analysis)
    device = DeviceFacts(arch="sm_90a")
    made = api.generate(analysis, analysis.schedules(device)[0], device)
    assert isinstance(made, Candidate) and len(made.plan.steps) == 4
    inputs = make_inputs(form.task.inputs, 0, "normal", input_bounds(form.task))
    found = cuda_emulator.run(made.source, made.plan, inputs, tmp_path)
    x, h, c, *weights = inputs
    wanted = operator_of("lstm")(x, h, c, weights, True, 2, False, True)[:2]
    for mark_as_ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mark_as_ours, theirs)
