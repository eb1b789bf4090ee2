"""Every row of a set goes the way of a model, and what becomes of its regions is counted."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import confined, synthesis_replay, synthesis_results, tracing
from benchmarks.synthesis_replay import (
    OWN,
    answered,
    counted,
    has_fault,
    is_wrong,
    reason_of,
    replay,
)
from benchmarks.synthesis_results import kept

CODE = """import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 48)
        self.to(torch.float32)

    def forward(self, x):
        {first}
        return torch.softmax(torch.tanh(self.layer(x)), -1)

def get_inputs():
    return [torch.randn(512, 64)]

def get_init_inputs():
    return []
"""


def rows() -> list[dict[str, Any]]:
    made = [
        {"code": CODE.format(first="pass"), "ops": ["nn.Linear", "torch.tanh", "torch.softmax"]},
        {"code": CODE.format(first="raise ValueError('no')"), "ops": ["torch.tanh"]},
        {"code": CODE.format(first="pass"), "ops": ["torch.tanh", "torch.softmax"]},
    ]
    common = {"families": ["linear", "softmax"], "dtype": "float32", "training": False}
    return [{**row, **common, "id": f"id{n}", "device_name": "cpu"} for n, row in enumerate(made)]


def arguments(forced: int = 0, device: str = "cpu") -> argparse.Namespace:
    return argparse.Namespace(device=device, jobs=1, forced=forced)


def test_a_row_replays_as_far_as_the_source_of_its_kernels(tmp_path: Path) -> None:
    """In confinement, where the code generator finds its headers, and a row that fails is said."""
    confined.preload(("benchmarks.coverage",), "cpu")
    items = [
        (row["id"], {"code": row["code"], "device": "cpu", "training": n == 2, "forced": False})
        for n, row in enumerate(rows())
    ]
    # It asks for values of tensors, which fake ones do not have.
    routed = CODE.format(first="x = x * sum(int(n) for n in (x[0] > 0).nonzero())")
    items.append(("routed", {**items[0][1], "code": routed}))
    found = dict(confined.each(items, replay, jobs=1, target="cpu", limit_s=240, read=OWN))
    assert "regions" in found["id0"], found["id0"]
    covered = [part["family"] for part in found["id0"]["regions"] if not part["reason"]]
    assert covered and all(covered), found["id0"]
    assert "ValueError" in found["id1"]["failed"]
    assert len(found["id2"]["regions"]) > len(found["id0"]["regions"])  # backward too
    assert found["routed"]["regions"], found["routed"]


@pytest.mark.slow
def test_a_forced_row_runs_our_kernels_and_gives_what_eager_gives(tmp_path: Path) -> None:
    value = {"code": rows()[0]["code"], "device": "cpu", "training": False, "forced": True}
    found = replay(value, tmp_path)
    assert "covered" in {part["status"] for part in found["forced"]}
    assert found["ours"] < 1e-5 and not is_wrong(found, "float32")


def test_a_forced_result_is_wrong_where_inductors_is_not() -> None:
    assert is_wrong({"ours": 1e-3, "inductor": 1e-7}, "float32")
    assert not is_wrong({"ours": 1e-3, "inductor": 5e-4}, "float32")
    assert not is_wrong({"ours": 1e-3, "inductor": 1e-7}, "bfloat16")
    assert is_wrong({"ours": float("nan"), "inductor": 0.0}, "float32")


def test_what_is_answered_is_kept_and_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quick(value: Any, folder: Path) -> dict[str, Any]:
        (part,) = [{"family": "map", "reason": ""}]
        return {"regions": [part], "outside": {}, "why_moved": ""}

    monkeypatch.setattr(synthesis_replay, "replay", quick)
    path = tmp_path / "replay.jsonl"
    steps = answered(rows(), arguments(), path)
    next(steps)
    steps.close()
    assert len(kept(path)) == 1
    with path.open("ab") as file:
        file.write(b'["row 1 id1", {"reg')
    (before,) = kept(path)
    marked = path.read_bytes().replace(b'"map"', b'"marked"')
    path.write_bytes(marked)
    found = list(answered(rows(), arguments(), path))[-1]
    assert len(found) == 3 and len(kept(path)) == 3
    assert found[" ".join(before.split()[:2])]["regions"][0]["family"] == "marked"
    other = [{**row, "id": "other"} for row in rows()]
    assert len(list(answered(other, arguments(), path))[-1]) == 3
    assert len(kept(path)) == 6


def test_answers_of_another_device_and_of_rows_without_kernels_in_place_are_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[str, bool]]()

    def each(items: Any, work: Any, **how: Any) -> Any:
        for name, value in items:
            asked.append((value["device"], value["forced"]))
            yield name, {"regions": [], "outside": {}, "why_moved": ""}

    monkeypatch.setattr(confined, "each", each)
    path = tmp_path / "replay.jsonl"
    for _ in range(2):
        for args in (arguments(), arguments(device="cuda"), arguments(forced=1)):
            assert set(list(answered(rows(), args, path))[-1]) == {"row 0", "row 1", "row 2"}
    assert asked == 3 * [("cpu", False)] + 3 * [("cuda", False)] + [("cpu", True)]


def test_a_row_is_traced_without_products_that_are_padded_by_a_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    found = list[bool]()

    def traced(*given: Any) -> tracing.Traced:
        found.append(config.shape_padding)
        return tracing.Traced((), "RuntimeError: why")

    monkeypatch.setattr(synthesis_replay, "_traced", traced)
    value = {"code": CODE, "device": "cpu", "training": False, "forced": False}
    assert replay(value, tmp_path)["why_moved"] == "RuntimeError: why"
    assert found == [False] and config.shape_padding


def test_the_first_error_on_cuda_is_kept_where_a_graph_is_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def graphs(make: Any, options: Any, wishes: Any, device: str) -> list[Any]:
        if device == "cuda":
            raise RuntimeError("no kernel of cuda\nand more")
        return []

    monkeypatch.setattr(tracing, "_graphs", graphs)
    made: Any = None
    found = tracing.trace(made, made, tracing.Wishes())
    assert found.on_cpu and found.why_moved == "RuntimeError: no kernel of cuda and more"
    assert not tracing.trace(made, made, tracing.Wishes(device="cpu")).on_cpu


def test_graphs_of_the_cpu_in_place_of_a_cards_are_counted_and_a_fault(tmp_path: Path) -> None:
    part = {"regions": [], "outside": {}, "why_moved": "RuntimeError: lacks 12 bytes"}
    found = counted(rows()[:2], {"row 0": part, "row 1": {**part, "why_moved": ""}})
    assert found["traced_on_cpu_and_moved"] == 1
    assert found["why_moved"] == {"RuntimeError: lacks N bytes": 1}
    assert has_fault(found, "cuda", has_card=True)
    assert not has_fault(found, "cuda", has_card=False)
    assert has_fault({**found, "failed": {"row 1": "no"}}, "cuda", has_card=False)


def test_regions_are_counted_by_family_and_by_reason(tmp_path: Path) -> None:
    answers = {
        "row 0": {
            "regions": [{"family": "map", "reason": ""}, {"family": "", "reason": "12 bytes only"}],
            "outside": {"convolution": 1},
            "cpu_s": 1.0,
        },
        "row 1": {"failed": "ValueError: no", "cpu_s": 0.5},
        "row 2": {
            "regions": [{"family": "map", "reason": ""}],
            "outside": {},
            "cpu_s": 1.0,
            "forced": [{"status": "covered"}],
            "ours": 1.0,
            "inductor": 0.0,
        },
    }
    found = counted(rows(), answers)
    assert found["replayed"] == 2 and found["failed"] == {"row 1": "ValueError: no"}
    assert (found["regions"], found["covered"], found["left"]) == (3, 2, {"N bytes only": 1})
    assert found["by_operator_family"]["softmax"] == {"covered": 2, "left": 1, "tasks": 2}
    assert found["tasks_covered_whole"] == 1 and list(found["forced_wrong"]) == ["row 2"]
    assert reason_of("13 of 14\nmore") == "N of N"
    synthesis_results.write(tmp_path, "replay ops-cpu", found)
    summary = json.loads((tmp_path / "synthesis.json").read_text())["summary"]["ops-cpu"]
    assert summary["replayed"] == 2 and summary["tasks"] == 3 and summary["families"] == 2
