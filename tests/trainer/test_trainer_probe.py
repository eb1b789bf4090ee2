"""Tasks run confined: whatever one does, it costs that task only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.isolation.confine import offered
from trainer.synthesis.probe.client import Prober
from trainer.synthesis.probe.request import ProbeRequest

TASK = """import os, socket, time
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 8)
        self.idle = torch.nn.Parameter(torch.ones(3))

    def forward(self, x, y):
        return torch.relu(self.layer(x))

def get_inputs():
    {line}
    return [torch.randn(64, 16), torch.randn(4)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def prober(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prober]:
    made = Prober(tmp_path_factory.mktemp("probe") / "lock")
    yield made
    made.stop()


def look(
    prober: Prober, line: str, most_s: float = 100.0, limit_s: float = 300.0
) -> dict[str, Any]:
    return look_at(prober, TASK.format(line=line), most_s, limit_s)


def look_at(
    prober: Prober, code: str, most_s: float = 0.0, limit_s: float = 300.0
) -> dict[str, Any]:
    request = ProbeRequest(code, "cpu", False, 0.0, most_s, 1 << 20, 4 << 30, limit_s)
    return prober.probe(request)


@pytest.mark.parametrize(
    "line",
    ["open('{secret}').read()", "socket.create_connection(('127.0.0.1', 9), 5)"],
    ids=["file", "network"],
)
def test_a_hostile_task_reads_no_file_and_reaches_no_network(
    prober: Prober, tmp_path: Path, line: str
) -> None:
    if offered().why_no_untrusted_code:
        pytest.skip(str(offered().why_no_untrusted_code))
    secret = tmp_path / "secret"
    secret.write_text("of the user")
    found = look(prober, line.format(secret=secret))
    assert "PermissionError" in found["failed"], found


def test_a_task_that_hangs_or_dies_or_is_too_large_costs_that_task_only(prober: Prober) -> None:
    assert look(prober, "time.sleep(600)", limit_s=3.0)["stage"] == "time"
    assert look(prober, "os._exit(3)")["stage"] == "process"
    assert look(prober, "return [torch.randn(1 << 20)]")["stage"] == "build"
    assert "failed" not in look(prober, "pass", most_s=0.0)


def test_a_task_outside_of_its_window_is_looked_at_no_further(prober: Prober) -> None:
    found = look(prober, "pass", most_s=0.0)
    assert found["in_window"] is False and "used" not in found


@pytest.mark.slow
def test_what_results_do_not_depend_on_is_found(prober: Prober) -> None:
    found = look(prober, "pass")
    assert "failed" not in found, found
    assert found["by_weight"]["idle"] == 0.0 and found["by_weight"]["layer.weight"] > 0.1
    assert found["by_input"][0] > 0.1 and found["by_input"][1] == 0.0
    assert found["used"]["Linear"] == 1 and found["used"]["relu"] == 1
    assert found["error"] < 1e-3 and found["eager_s"] > 0 and len(found["graphs"]) == 1


def test_a_weight_that_is_left_uninitialized_is_found(prober: Prober) -> None:
    found = look_at(prober, TASK.format(line="pass").replace("torch.ones(3)", "torch.empty(8)"))
    assert found["outputs"]["finite"] is True  # it is not used
    used = TASK.format(line="pass").replace("torch.ones(3)", "torch.empty(8)")
    used = used.replace("self.layer(x))", "self.layer(x) + self.idle)")
    assert look_at(prober, used)["outputs"]["finite"] is False


HALF = """import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv1d(4, 4, 3)
        self.norm = torch.nn.InstanceNorm1d(4)
        self.to(torch.bfloat16)

    def forward(self, x):
        return self.norm(self.layer(x))

def get_inputs():
    return [torch.randn(3, 4, 40, dtype=torch.bfloat16)]

def get_init_inputs():
    return []
"""


def test_rounding_does_not_hide_that_a_weight_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 a bias before a normalization moves the result by rounding only."""
    from contextlib import nullcontext

    from trainer.synthesis.filters.decide import INDEPENDENT
    from trainer.synthesis.probe import work

    def no_compiler(*_: Any) -> bool:
        return False

    monkeypatch.setattr(work, "_compile", no_compiler)
    request = ProbeRequest(HALF, "cpu", False, 0.0, 100.0, 1 << 20, 4 << 30, 60.0)
    found = work.probe(request, tmp_path, nullcontext)
    assert "failed" not in found, found
    assert found["by_weight"]["layer.bias"] < INDEPENDENT < found["by_weight"]["layer.weight"]
