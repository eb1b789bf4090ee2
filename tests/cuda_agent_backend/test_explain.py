"""explain: regions with status and reason, without a search, a compilation of ours or a change to the model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch

from cuda_agent_backend.codegen import bugs
from cuda_agent_backend.hook import walk
from cuda_agent_backend.partition.estimate import room
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.partition.report import GraphReport, RegionReport
from cuda_agent_backend.tools import explain as explaining
from cuda_agent_backend.tools.explain import Explanation, explain

OPTIONS = {"cuda_agent.min_bytes": 0}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.norm = torch.nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.norm(self.linear(x)), -1)


def test_an_inference_graph_is_explained_and_a_kernel_makes_a_hit(tmp_path: Path) -> None:
    from cuda_agent_backend.tools.capture import capture
    from cuda_agent_backend.tools.record_inputs import canonical_forms

    model, x = Net().eval(), torch.randn(8, 16)
    options = {
        **OPTIONS,
        "cuda_agent.cache_dir": str(tmp_path / "kernels"),
        "cuda_agent.acceptance": "trust",
    }
    found = explain(model, x, options=options)
    (region,) = found.graphs[0].regions
    assert (region.status, region.reason) == ("miss", "no record")
    assert region.room and region.room > 1.2
    wishes = kit.options_in(tmp_path, cache_dir=str(tmp_path / "kernels"))
    (graph,) = capture(model, (x,), wishes)
    (form,) = canonical_forms(graph.module.graph)
    kit.promote(kit.cache_of(wishes), form.task, "", tmp_path)
    again = explain(model, x, options=options)
    assert again.graphs[0].regions[0].status == "hit"
    assert again.graphs[0].digest == found.graphs[0].digest
    json.dumps(again.to_json())


def test_a_training_graph_is_explained_and_the_model_is_as_before(tmp_path: Path) -> None:
    model, x = Net().train(), torch.randn(8, 16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = {**OPTIONS, "cuda_agent.cache_dir": str(tmp_path / "kernels")}
    found = explain(model, x, training=True, options=options)
    assert [graph.kind for graph in found.graphs] == ["forward", "backward"]
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name])


def test_an_unusable_cache_is_a_problem_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = explain(
        torch.exp,
        torch.randn(8),
        options={**OPTIONS, "cuda_agent.cache_dir": str(tmp_path / "file")},
    )
    assert found.problem and found.graphs[0].regions[0].status == "left"


def test_one_pass_over_the_data_leaves_no_room_and_softmax_some() -> None:
    from test_partition import graph_of

    x = torch.randn(64, 64)
    rooms = []
    for function in (lambda x: (x * 2).tanh(), lambda x: torch.softmax(x, -1)):
        (region,) = partition(graph_of(function, x))
        rooms.append(room(region))
    assert rooms[0] == 1.0 and rooms[1] == pytest.approx(2.0, rel=0.05)


def test_a_bug_of_the_code_generator_is_told_with_its_task() -> None:
    bugs.forget()
    left = RegionReport({"exp": 1}, 1, 8, "left", "symbolic sizes")
    lost = replace(left, status="negative", task="a" * 64, reason=f"not covered: {bugs.REASON}: x")
    found = Explanation((GraphReport("digest", "forward", (left, lost)),))
    assert found.bugs == found.to_json()["bugs"] == {"a" * 64: lost.reason}


def test_a_graph_is_cut_into_regions_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    def counted(graph: torch.fx.Graph, **more: Any) -> list[Region]:
        graphs.append(graph)
        return partition(graph, **more)

    monkeypatch.setattr(walk, "partition", counted)
    monkeypatch.setattr(explaining, "partition", counted)
    options = {**OPTIONS, "cuda_agent.cache_dir": str(tmp_path / "kernels")}
    assert explain(torch.exp, torch.randn(8), options=options).graphs[0].regions[0].room
    assert len(graphs) == 1
