"""warm: tasks of a model are searched with their real inputs, and what is found is used by the next compilation."""

import errno
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch
from torch import Tensor

from cuda_agent_backend import log
from cuda_agent_backend.backend import cuda_agent
from cuda_agent_backend.runtime import kernels
from cuda_agent_backend.runtime.tensor_files import load, save
from cuda_agent_backend.search import client as searching
from cuda_agent_backend.search.client import SearchProcess
from cuda_agent_backend.tools import record_inputs, tables
from cuda_agent_backend.tools.capture import capture
from cuda_agent_backend.tools.record_inputs import canonical_forms
from cuda_agent_backend.tools.warm import warm
from sandbox import scratch

OPTIONS = {"cuda_agent.min_bytes": 0, "cuda_agent.acceptance": "trust"}


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[SearchProcess]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(kernels, "_open", {})
    made = SearchProcess("fake_service")
    monkeypatch.setattr(searching, "search_process", lambda: made)
    yield made
    made.stop()
    torch._dynamo.reset()


def network(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w).exp() @ w).sin()


def test_what_warming_finds_the_next_compilation_uses(process: SearchProcess) -> None:
    inputs = (torch.randn(8, 8) / 8, torch.randn(8, 8) / 8)
    report = warm(network, inputs, budget_s=300.0, options=OPTIONS)
    (graph,) = report.graphs
    assert [region.status for region in graph.regions] == ["hit", "negative"]
    assert report.used == 1 and graph.regions[1].reason == "at the limit"
    json.dumps(report.to_json())
    cached = {**OPTIONS, "cuda_agent.search": "cached"}
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        made = torch.compile(network, backend=cuda_agent, options=cached)
        torch.testing.assert_close(made(*inputs), network(*inputs))
    from sandbox.launcher import registry

    assert registry._programs


def test_what_is_beside_a_product_that_loses_is_searched_and_used(process: SearchProcess) -> None:
    from cuda_agent_backend.tools.explain import explain

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).neg().exp()

    # other sizes than other tests have, whose kernels for the same tasks are bound in this process
    inputs = (torch.randn(270, 130) / 8, torch.randn(130, 140) / 8)
    report = warm(layer, inputs, budget_s=300.0, options=OPTIONS)
    (graph,) = report.graphs
    assert [region.status for region in graph.regions] == ["negative", "hit"]
    assert [region.beside for region in graph.regions] == [False, True] and report.used == 1
    assert tables.region_name(graph.regions[1]).startswith("beside it: ") and graph.wholes == 1
    again = warm(layer, inputs, budget_s=300.0, options=OPTIONS)
    assert again.graphs[0].regions == graph.regions
    cached = {**OPTIONS, "cuda_agent.search": "cached"}
    told = explain(layer, *inputs, options=cached).graphs[0].regions
    assert [region.task for region in told] == [region.task for region in graph.regions]
    assert all(region.room for region in told)
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        made = torch.compile(layer, backend=cuda_agent, options=cached)
        torch.testing.assert_close(made(*inputs), layer(*inputs))


def test_an_unusable_cache_is_a_problem_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = warm(
        network, (torch.ones(2, 2),) * 2, options={"cuda_agent.cache_dir": str(tmp_path / "file")}
    )
    assert report.problem and not report.graphs


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_model_is_warmed_without_real_inputs_where_they_have_no_room(
    process: SearchProcess,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def make(purpose: str, beside: str | Path | None = None, make: Any = scratch.make) -> Path:
        if purpose == "warm":
            raise OSError(number, os.strerror(number))
        return make(purpose, beside)

    log.forget()
    monkeypatch.setattr(scratch, "make", make)
    inputs = (torch.randn(8, 8) / 8, torch.randn(8, 8) / 8)
    with caplog.at_level(logging.WARNING):
        report = warm(network, inputs, budget_s=300.0, options=OPTIONS)
    assert report.used == 1 and not report.problem
    assert f"drawn inputs alone: [Errno {number}]" in caplog.text


def test_real_inputs_are_recorded_where_regions_begin(tmp_path: Path) -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    (graph,) = capture(network, (x, w), kit.options_in(tmp_path), record_in=tmp_path / "inputs")
    forms = list(canonical_forms(graph.module.graph))
    assert set(graph.recorded) == {form.task.digest for form in forms} and len(forms) == 2
    exp = next(f for f in forms if f.task.nodes[0].op == "aten.exp.default")
    (value,) = load(Path(graph.recorded[exp.task.digest]))
    torch.testing.assert_close(value, x @ w)


def test_a_backward_pass_that_was_done_in_the_forward_is_a_graph_without_calls(
    tmp_path: Path,
) -> None:
    """A gradient that is zero everywhere needs nothing of what comes later. Inductor runs no pass on what is left."""
    x, w = torch.randn(8, 8), torch.randn(8, requires_grad=True)
    graphs = capture(lambda x: torch.trunc(x * w), (x,), kit.options_in(tmp_path), training=True)
    calls = [sum(node.op == "call_function" for node in g.module.graph.nodes) for g in graphs]
    assert calls[0] > 0 and calls[1:] == [0]


def test_real_inputs_are_recorded_beside_products(tmp_path: Path) -> None:
    x, w = torch.randn(256, 128), torch.randn(128, 128)
    options = kit.options_in(tmp_path)
    (graph,) = capture(
        lambda x, w: (x @ w).neg().exp(), (x, w), options, record_in=tmp_path / "inputs"
    )
    rest = next(f for f in canonical_forms(graph.module.graph) if len(f.task.inputs) == 1)
    (value,) = load(Path(graph.recorded[rest.task.digest]))
    torch.testing.assert_close(value, x @ w)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4).t(),
        torch.randn(3, 1).expand(3, 4),
        torch.arange(24).reshape(4, 6)[::2, 1::3],
        torch.randn(5).bfloat16(),
        torch.tensor(True),
    ],
    ids=["transposed", "expanded", "sliced", "bfloat16", "scalar"],
)
def test_tensors_survive_files_with_their_strides(tensor: Tensor, tmp_path: Path) -> None:
    save(tmp_path / "t", [tensor])
    (again,) = load(tmp_path / "t")
    assert again.stride() == tensor.stride() and again.dtype == tensor.dtype
    assert torch.equal(again, tensor)


def test_a_model_is_not_warmed_without_turns_on_its_device(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    own = {**OPTIONS, "cuda_agent.device_lock": str(tmp_path / "file" / "lock")}
    report = warm(torch.exp, (torch.randn(8, 8),), options=own)
    assert not report.graphs and "no turns on the device" in report.problem
    assert "CUDA_AGENT_DEVICE_LOCK" in report.problem


def test_what_the_host_has_no_memory_for_is_searched_on_drawn_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = (torch.randn(8, 8) / 8, torch.randn(8, 8) / 8)
    monkeypatch.setattr(log, "_said", {})
    (whole,) = capture(network, inputs, kit.options_in(tmp_path), record_in=tmp_path / "whole")
    monkeypatch.setattr(record_inputs, "_host_memory", lambda: 2 * inputs[0].nbytes)
    (some,) = capture(network, inputs, kit.options_in(tmp_path), record_in=tmp_path / "some")
    assert len(whole.recorded) > len(some.recorded)
    assert "copies of real inputs would take more than 50% of what the host has" in caplog.text
