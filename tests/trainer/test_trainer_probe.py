"""Tasks run confined: whatever one does, it costs that task only."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from kit.processes import children, gone

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
    prober: Prober,
    code: str,
    most_s: float = 0.0,
    limit_s: float = 300.0,
    alone: bool = True,
    training: bool = False,
) -> dict[str, Any]:
    request = ProbeRequest(
        code, "cpu", training, 0.0, most_s, 1 << 20, 4 << 30, limit_s, ("nn.Linear",), alone=alone
    )
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


LEFT = TASK.format(line="import sys; sys.seen = 1 + getattr(sys, 'seen', 0); assert sys.seen < 3")


def test_tasks_of_ours_share_a_process_and_what_fails_there_is_tried_in_a_new_one(
    prober: Prober,
) -> None:
    def failed(alone: bool) -> bool:
        return "failed" in look_at(prober, LEFT, alone=alone)

    # Inputs are drawn once a task here, so the third in a process fails, and then is the first of a new one.
    assert [failed(False) for _ in range(4)] == [False] * 4
    with_two = LEFT.replace("sys.seen < 3", "sys.seen < 2")
    assert not failed(True)
    assert "AssertionError" not in str(look_at(prober, with_two, alone=True))
    assert "AssertionError" not in str(look_at(prober, with_two, alone=True))


def test_a_task_that_dies_among_others_costs_that_task_only(prober: Prober) -> None:
    dies = TASK.format(line="os._exit(3)")
    good = TASK.format(line="pass")
    found = [look_at(prober, code, alone=False).get("stage") for code in (good, dies, good)]
    assert found == [None, "process", None]
    assert (
        look_at(prober, TASK.format(line="time.sleep(600)"), limit_s=3.0, alone=False)["stage"]
        == "time"
    )
    assert "failed" not in look_at(prober, good, alone=False)


def test_a_server_whose_parent_dies_ends_with_the_task_that_it_runs(tmp_path: Path) -> None:
    code = TASK.format(line="time.sleep(600)")
    request = ProbeRequest(code, "cpu", False, 0.0, 0.0, 1 << 20, 4 << 30, 500.0, alone=False)
    parent = f"""import json, os, sys, threading, time
from trainer.synthesis.probe.client import Prober
from trainer.synthesis.probe.request import ProbeRequest
prober = Prober(__import__("pathlib").Path({str(tmp_path / "lock")!r}))
request = ProbeRequest.from_json(json.loads({json.dumps(request.to_json())!r}))
threading.Thread(target=prober.probe, args=[request], daemon=True).start()
while prober._child is None:
    time.sleep(0.05)
print(prober._child.process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True
    ) as made:
        assert made.stdout is not None
        server = int(made.stdout.readline())
        task = None
        while task is None:  # the server forks twice once torch is imported
            task = next((pid for fork in children(server) for pid in children(fork)), None)
            time.sleep(0.2)
        made.kill()
    assert gone([server, task])


@pytest.mark.slow
def test_the_same_is_found_of_a_task_whatever_was_looked_at_before(prober: Prober) -> None:
    code = TASK.format(line="pass").replace("self.layer(x))", "self.layer(x)) + y[:1]")
    code = code.replace("self.idle = torch.nn.Parameter(torch.ones(3))", "pass")
    first, *others = (
        look_at(prober, code, most_s=100.0, alone=alone) for alone in (True, False, False)
    )
    assert "failed" not in first and first["by_input"][1] > 0, first
    for other in others:
        for name in ("graphs", "structures", "used", "by_input", "by_weight", "error", "random"):
            assert other[name] == first[name], name


@pytest.mark.slow
def test_attention_that_drops_nothing_does_not_draw(prober: Prober) -> None:
    code = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p={share})
def get_inputs():
    return [torch.randn(2, 4, 32, 16)]
def get_init_inputs():
    return []
"""
    found = [look_at(prober, code.format(share=share), most_s=100.0) for share in (0.0, 0.5)]
    assert found[0]["random"] == [] and found[1]["again"] > 0.01, found


@pytest.mark.slow
def test_what_results_do_not_depend_on_is_found(prober: Prober) -> None:
    found = look(prober, "pass")
    assert "failed" not in found, found
    assert found["by_weight"]["idle"] == 0.0 and found["by_weight"]["layer.weight"] > 0.1
    assert found["by_input"][0] > 0.1 and found["by_input"][1] == 0.0
    assert "used" not in found  # a filter drops it, so it is not compiled
    whole = TASK.format(line="pass").replace(
        "self.layer(x))", "self.layer(x)) * y[0] + self.idle[0]"
    )
    found = look_at(prober, whole, most_s=100.0)
    assert found["used"]["Linear"] == 1 and found["used"]["relu"] == 1
    assert found["error"] < 1e-3 and found["eager_s"] > 0 and len(found["graphs"]) == 1
    assert found["cpu_s"]["compile"] > found["cpu_s"]["values"]


def test_a_weight_that_is_left_uninitialized_is_found(prober: Prober) -> None:
    found = look_at(prober, TASK.format(line="pass").replace("torch.ones(3)", "torch.empty(8)"))
    assert found["outputs"]["finite"] is True  # it is not used
    used = TASK.format(line="pass").replace("torch.ones(3)", "torch.empty(8)")
    used = used.replace("self.layer(x))", "self.layer(x) + self.idle)")
    assert look_at(prober, used)["outputs"]["finite"] is False


def test_what_results_hold_is_not_hidden_by_gradients(prober: Prober) -> None:
    code = TASK.format(line="pass").replace("self.idle = torch.nn.Parameter(torch.ones(3))", "pass")
    saturated = code.replace("self.layer(x))", "self.layer(x) - 100)")
    stepped = code.replace("self.layer(x))", "torch.round(self.layer(x) * 4 + y[0]))")
    found = [look_at(prober, text, training=True) for text in (code, saturated, stepped)]
    assert [facts["outputs"]["common"] > 0.9 for facts in found] == [False, True, False]
    assert [facts["slopes"]["constant"] for facts in found] == [False, True, True]


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


class Free:
    """A device that nobody else wants."""

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    shared = alone


def test_rounding_does_not_hide_that_a_weight_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 a bias before a normalization moves the result by rounding only."""
    from trainer.synthesis.filters.decide import INDEPENDENT
    from trainer.synthesis.probe import work

    early = {name: work.STEPS[name] for name in ("eager", "values")}
    monkeypatch.setattr(work, "STEPS", early)
    request = ProbeRequest(HALF, "cpu", False, 0.0, 100.0, 1 << 20, 4 << 30, 60.0)
    found = work.probe(request, tmp_path, Free())
    assert "failed" not in found, found
    assert found["by_weight"]["layer.bias"] < INDEPENDENT < found["by_weight"]["layer.weight"]


@pytest.mark.gpu
@pytest.mark.parametrize("training", [False, True])
def test_a_task_is_compiled_and_timed_on_a_device(tmp_path: Path, training: bool) -> None:
    code = (
        TASK.format(line="pass")
        .replace("(64, 16)", "(1 << 16, 16)")
        .replace(", torch.randn(4)]", "]")
    )
    code = code.replace("self, x, y", "self, x")
    ceilings = {"bytes_per_s": 3e12, "read_bytes_per_s": 3e12, "flops_per_s": 5e13, "call_s": 2e-6}
    request = ProbeRequest(
        code.replace("self.idle = torch.nn.Parameter(torch.ones(3))", ""),
        "cuda",
        training,
        0.0,
        100.0,
        1 << 30,
        4 << 30,
        300.0,
        ("nn.Linear", "torch.relu"),
        ceilings={**ceilings, "cache_bytes": 5e7},
        alone=False,
    )
    prober = Prober(tmp_path / "lock")
    try:
        found = prober.probe(request)
    finally:
        prober.stop()
    assert "failed" not in found, found
    assert found["error"] < 1e-3 and found["regions"]
    assert 0 < found["floor_s"] < found["eager_s"] and found["inductor_s"] > 0
    assert set(found["cpu_s"]) == {"build", "eager", "values", "compile", "times"}


def test_the_device_is_left_to_others_while_a_task_is_compiled() -> None:
    import torch

    from trainer.synthesis.probe.graphs import MeanwhileAndAlone, Seen, compiled
    from trainer.synthesis.probe.work import _WhileRunning

    held: list[bool] = []
    turns: list[str] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        turns.append("begin")
        yield
        turns.append("end")

    class Watched(_WhileRunning):
        @contextlib.contextmanager
        def compiling(self) -> Iterator[None]:
            with super().compiling():
                held.append(self._held)
                yield

    running = Watched(turn)
    turns_of = MeanwhileAndAlone(running.compiling)
    x = torch.ones(8, requires_grad=True)
    result = compiled(lambda x: (x * 2).exp().sum(), Seen(), turns_of)(x)
    assert turns == ["begin"]
    result.backward()  # which compiles once more
    running.begin()
    assert turns[-1] == "begin" and held and not any(held)
    running.end()
    pairs = len(turns) // 2
    assert turns == ["begin", "end"] * pairs
    compiled(lambda x: x.cos(), Seen(), turns_of)(x.detach())
    assert len(turns) == 2 * pairs, "a turn was taken within what is timed"


def test_comparisons_that_follow_each_other_are_one_turn_until_it_is_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trainer.synthesis.probe import work

    turns: list[str] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        turns.append("begin")
        try:
            yield
        finally:
            turns.append("end")

    monkeypatch.setattr(work, "STRETCH_S", 60.0)
    with work._Stretches(turn) as stretches:
        for _ in range(3):
            with stretches.turn():
                assert turns == ["begin"]
        assert turns == ["begin"]
        monkeypatch.setattr(work, "STRETCH_S", 0.0)
        with stretches.turn():
            pass
        assert turns == ["begin", "end"], "it has lasted long enough"
        with pytest.raises(ValueError, match="no memory"), stretches.turn():
            raise ValueError("no memory")
    assert turns == ["begin", "end"] * 2
