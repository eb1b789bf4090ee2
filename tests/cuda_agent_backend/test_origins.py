"""What a graph that is built again knows of where its operators came from."""

from pathlib import Path
from typing import Any

import splice_kit as kit
import torch
from torch import Tensor, nn
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.utils import run_and_get_code

from cuda_agent_backend.acceptance.speed import Call
from cuda_agent_backend.acceptance.trial import Trial
from cuda_agent_backend.acceptance.whole_graph import graph_task
from cuda_agent_backend.graph.origins import origins, restore
from cuda_agent_backend.tools.capture import capture
from sandbox.graph.build import build_graph
from sandbox.task.task import Task
from sandbox.timing.device_lock import DeviceLock

INPUT = torch.randn(8, 3, 16)


class Landmarks(nn.Module):
    """Operators that are decomposed, one with two results, and, where it counts, a write to a buffer."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.register_buffer("seen", torch.zeros(3, 16))

    def forward(self, x: Tensor) -> Tensor:
        if self.counts:
            self.seen.add_(1)
        spread, mean = torch.var_mean(torch.softmax(x, -1), -1)
        return nn.functional.gelu(x) * spread[..., None] + mean[..., None]


def graphs(folder: Path, counts: bool = True) -> tuple[torch.fx.GraphModule, Task]:
    (found,) = capture(Landmarks(counts), (INPUT,), kit.options_in(folder))
    whole = graph_task(found.module.graph)
    assert isinstance(whole, Task)
    return found.module, Task.from_json(whole.to_json())


def fused_names(module: torch.fx.GraphModule, inputs: list[Tensor]) -> set[str]:
    def compiled() -> Any:
        return compile_fx_inner(module, inputs, is_inference=True)(list(inputs))

    with config.patch(force_disable_caches=True):
        _, codes = run_and_get_code(compiled)
    return {word for code in codes for word in code.replace("(", " ").split() if "_fused_" in word}


def test_a_rebuilt_graph_has_the_names_of_its_original(tmp_path: Path) -> None:
    module, whole = graphs(tmp_path)
    known = origins(module.graph)
    assert "aten._softmax.default" in known and "aten.gelu.default" in known
    rebuilt = build_graph(whole)
    assert not any(origins(rebuilt.graph))
    restore(rebuilt.graph, known)
    again = origins(rebuilt.graph)
    assert again == known


def test_inductor_names_the_kernels_of_a_rebuilt_graph_alike(tmp_path: Path) -> None:
    module, whole = graphs(tmp_path, counts=False)
    rebuilt, bare = build_graph(whole), build_graph(whole)
    restore(rebuilt.graph, origins(module.graph))
    inputs = [torch.rand(spec.shape) for spec in whole.inputs]
    wanted = fused_names(rebuilt, inputs)
    assert any("softmax" in name for name in wanted)
    assert wanted != fused_names(bare, inputs)
    assert wanted == fused_names(module, inputs)


def test_an_operator_that_is_not_known_here_has_no_name(tmp_path: Path) -> None:
    _, whole = graphs(tmp_path)
    rebuilt = build_graph(whole)
    restore(rebuilt.graph, ("nowhere.operator.default", "aten.exp", *[""] * 99))
    assert not any(origins(rebuilt.graph))


def test_acceptance_compiles_under_the_names(tmp_path: Path, monkeypatch: Any) -> None:
    module, whole = graphs(tmp_path)
    known, compiled = origins(module.graph), []
    real = Trial._compile

    def compiling(self: Trial, given: torch.fx.GraphModule, *args: Any, **more: Any) -> Call:
        compiled.append(origins(given.graph))
        return real(self, given, *args, **more)

    monkeypatch.setattr(Trial, "_compile", compiling)
    with config.patch(force_disable_caches=True):
        trial = Trial(whole, {}, 0, DeviceLock(None), origins=known)
        trial.measure([])
        trial.measure_layouts()
    assert compiled == [known] * 3
