"""Runs of tasks: what is kept, what is skipped, what a bad task does to the others. Nothing here depends on a time."""

from __future__ import annotations

import json
import operator
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from bench_kit import GOOD, WISHES, Played, bench_of, request, run_played, task
from kit.processes import gone, text_in

from cuda_agent_backend.bench import children as children_module
from cuda_agent_backend.bench import cores, run_times, runner
from cuda_agent_backend.bench.built_task import BuiltTask, Place, build
from cuda_agent_backend.bench.child import SOONER_S, default_lock, own_limit
from cuda_agent_backend.bench.children import (
    Children,
    Failed,
    Interrupted,
    OutOfTime,
    TimedOut,
    how_it_ended,
)
from cuda_agent_backend.bench.cores import number_of_cards, share_of
from cuda_agent_backend.bench.measurement import INDUCTOR, OURS, accuracy_of, compile_all, mismatch
from cuda_agent_backend.bench.request import Request
from cuda_agent_backend.bench.results import (
    Identity,
    Results,
    lacked_memory,
    may_replace,
    search_was_cut,
    wanted_again,
)
from cuda_agent_backend.bench.runner import Machine, jobs_of, limit_of, look_at_machine
from cuda_agent_backend.cli import command as cli

RAISES = GOOD.replace(
    "return torch.softmax", "raise RuntimeError('never works')\n        return torch"
)
DIES = GOOD.replace(
    "super().__init__()", "import os; print('last words', flush=True); os.kill(os.getpid(), 9)"
)


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other search on this machine has the device while a command of these tests wants it."""
    monkeypatch.setenv("CUDA_AGENT_DEVICE_LOCK", str(tmp_path / "lock"))


# What one task is.


def test_a_task_is_built_by_its_seed_in_the_asked_type(tmp_path: Path) -> None:
    file = task(tmp_path / "good.py").path
    one, other = (build(file, Place("cpu", torch.bfloat16), seed=3) for _ in range(2))
    assert isinstance(one, BuiltTask) and isinstance(other, BuiltTask)
    assert not one.model.training
    assert one.model.bias.dtype == torch.bfloat16 and one.model.steps.dtype == torch.int64
    torch.testing.assert_close(one.model.bias, other.model.bias)
    x, count = one.draw(7)
    assert x.dtype == torch.bfloat16 and count == 2
    torch.testing.assert_close(x, other.draw(7)[0])
    assert not torch.equal(x, one.draw(8)[0])
    assert not torch.equal(one.draw(3)[0][0], one.model.bias), "inputs are no weights"


def test_what_a_task_makes_is_made_on_the_device_or_where_its_code_works() -> None:
    place = Place("meta", torch.bfloat16)
    assert place.made(lambda: torch.randn(4), 7).is_meta
    asked: list[torch.device] = []

    def mixes() -> torch.Tensor:
        asked.append(torch.get_default_device())
        made = torch.randn(4) + torch.from_numpy(numpy.ones(4, "float32"))
        assert not made.is_meta
        return made

    torch.manual_seed(7)
    expected = torch.randn(4) + 1
    torch.testing.assert_close(place.made(mixes, 7), expected)
    assert [device.type for device in asked] == ["meta", "cpu"]
    torch.testing.assert_close(Place("cpu", torch.float32).made(mixes, 7), expected)
    with pytest.raises(ZeroDivisionError):
        place.made(lambda: torch.randn(4) / (1 // 0), 7)


RECURRENT = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = nn.GRU(5, 8)

    def forward(self, x):
        return torch.relu(self.core(x)[0])

def get_inputs():
    return [torch.randn(6, 4, 5)]

def get_init_inputs():
    return []
"""


def lay_together(module: torch.nn.RNNBase) -> None:
    """On cuda a module does so when it sees new weights, and a graph in which it does breaks."""
    torch._dynamo.graph_break()


def test_what_inductor_gives_up_is_measured_as_we_compile_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.RNNBase, "flatten_parameters", lay_together)
    file = task(tmp_path / "single" / "layer.py", RECURRENT).path
    built = build(file, Place("cpu", torch.float32), 0)
    assert isinstance(built, BuiltTask)
    made = built.again()
    assert type(made).forward.__code__ is not type(built.model).forward.__code__
    assert all(map(operator.is_, made.parameters(), built.model.parameters()))
    inputs = built.draw(0)
    with torch.no_grad():
        calls = compile_all(built, inputs, request(tmp_path)).calls
    for name in (OURS, INDUCTOR):
        with torch.no_grad(), torch.profiler.profile() as profile:
            calls[name](*inputs)
        names = {event.name for event in profile.events() or []}
        assert ("cuda_agent::gru" in names) == (name == OURS)


def test_a_result_may_be_as_inexact_as_eager_or_as_inductor() -> None:
    exact = [torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))]
    near, off = [exact[0].float()], [exact[0].float() * 1.001]
    assert accuracy_of(near, near, off, exact).wrong == ""
    assert "RMS" in accuracy_of(off, near, near, exact).wrong
    as_inductor = accuracy_of(off, near, off, exact)
    assert as_inductor.wrong == "" and as_inductor.as_inductor


def test_outputs_of_another_number_type_or_shape_differ() -> None:
    x = torch.zeros(2, 3)
    assert mismatch([x], [x]) == ""
    assert "1 outputs instead of 2" in mismatch([x], [x, x])
    assert "output 0" in mismatch([x.double()], [x]) and "output 0" in mismatch([x.T], [x])


# Children.


def test_a_request_survives_its_way(tmp_path: Path) -> None:
    sent = replace(request(tmp_path), ceilings={"bytes_per_s": 1.0})
    assert Request.from_text(sent.to_text()) == sent


def test_how_a_process_ended_is_said() -> None:
    assert how_it_ended(-11) == "killed by SIGSEGV"
    assert how_it_ended(-99) == "killed by signal 99"
    assert how_it_ended(3) == "ended with status 3 and without an answer"


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Children:
    """Children that run a given program instead of a phase."""
    (tmp_path / "played.py").write_text(text)
    monkeypatch.setattr(children_module, "CHILD", "played")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Children(tmp_path / "torch")


def test_a_child_that_hangs_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "pid"
    text = f"""
import subprocess, sys, time, pathlib
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(note)!r}).write_text(str(other.pid))
print("it hangs", flush=True)
time.sleep(600)
"""
    made = child(tmp_path, monkeypatch, text)
    found = made.run("search", request(tmp_path), tmp_path / "work", 10.0)
    assert isinstance(found, OutOfTime) and found.status == "timed_out"
    assert "not done after 10 s" in found.reason and found.log == "it hangs"
    assert gone([int(note.read_text())])


def test_a_phase_answers_before_its_limit_with_what_it_knows_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import sys, time
from pathlib import Path
from cuda_agent_backend.bench import child
from cuda_agent_backend.search.client import search_process

child.PhaseMemory.facts = lambda self: {"allocated": 7}
search_process().notes = {"race": {"leases": 1}}
child.PHASES["search"] = lambda request: print("searches", flush=True) or time.sleep(600)
child.main(sys.argv[1], child.Request.from_text(Path(sys.argv[2]).read_text()))
"""
    monkeypatch.setattr(children_module, "SPARE_S", 298.0)
    monkeypatch.setattr(children_module, "SPARE_SHARE", 1.0)
    made = child(tmp_path, monkeypatch, text)
    found = made.run("search", request(tmp_path), tmp_path / "work", 300.0)
    assert isinstance(found, OutOfTime) and found.status == "timed_out"
    assert (found.memory, found.leases) == ({"allocated": 7}, {"race": {"leases": 1}})
    assert "limit" in found.reason and found.phase == "search"


def test_a_phase_that_ends_at_its_limit_ends_its_search_first_and_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "pid"
    text = f"""
import sys, time
from pathlib import Path
from cuda_agent_backend.bench import child
from cuda_agent_backend.search import client

client._process = client.SearchProcess("stays")

def search(request):
    client.search_process().tell({{"do": "leave"}})
    while not Path({str(note)!r}).exists():
        time.sleep(0.05)
    with child.answered_after(0.0, request, lambda: {{"out_of_time": "at the limit"}}):
        for _ in range(2):
            found = client.search_process().ask({{"do": "search"}}, 600.0, lambda told: None)
        return {{"failed": found["reason"]}}

child.PHASES["search"] = search
child.main(sys.argv[1], child.Request.from_text(Path(sys.argv[2]).read_text()))
"""
    # It ends neither with its input nor when it is asked to.
    stays = f"""
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
half = pathlib.Path(f"{note!s}.{{os.getpid()}}")
half.write_text(str(os.getpid()))
half.replace({str(note)!r})
time.sleep(600)
"""
    (tmp_path / "stays.py").write_text(stays)
    made = child(tmp_path, monkeypatch, text)
    found = made.run("search", request(tmp_path), tmp_path / "work", 300.0)
    assert gone([int(text_in(note))])
    assert isinstance(found, OutOfTime) and "limit" in found.reason


def test_a_task_whose_own_code_hangs_has_timed_out_also_where_its_phase_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_limit(300.0, answer_by=1000.0, now=100.0) == 300.0
    assert own_limit(300.0, answer_by=0.0, now=100.0) == 300.0, "it has no limit"
    assert own_limit(300.0, answer_by=150.0, now=100.0) == 50.0 - SOONER_S
    assert own_limit(300.0, answer_by=100.5, now=100.0) == 300.0, "waiting took its time"
    hangs = GOOD.replace("return [0.5]", "import time; time.sleep(600)")
    asked = replace(request(tmp_path), file=str(task(tmp_path / "t" / "hangs.py", hangs).path))
    text = """
import sys, time
from dataclasses import replace
from pathlib import Path
from cuda_agent_backend.bench import child
import cuda_agent_backend.tools.warm

child.start_search = lambda request: None
asked = child.Request.from_text(Path(sys.argv[2]).read_text())
child.main(sys.argv[1], replace(asked, answer_by=time.monotonic() + 10.0))
"""
    found = child(tmp_path, monkeypatch, text).run("search", asked, tmp_path / "work", 300.0)
    assert isinstance(found, TimedOut) and not isinstance(found, OutOfTime)
    assert "own code" in found.reason


def test_a_task_whose_own_code_hangs_ends_before_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import sys
from pathlib import Path
from cuda_agent_backend.bench import child
child.MODEL_LIMIT_S = 1.0
child.main(sys.argv[1], child.Request.from_text(Path(sys.argv[2]).read_text()))
"""
    hangs = GOOD.replace("return [0.5]", "import time; print('hm', flush=True); time.sleep(600)")
    asked = replace(request(tmp_path), file=str(task(tmp_path / "t" / "hangs.py", hangs).path))
    found = child(tmp_path, monkeypatch, text).run("search", asked, tmp_path / "work", 300.0)
    assert isinstance(found, TimedOut) and "after 1 s" in found.reason
    assert not isinstance(found, OutOfTime), "it would hang while it is measured, too"


def test_an_old_answer_is_not_taken_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "search.json").write_text('{"seconds": 1}')
    made = child(tmp_path, monkeypatch, "raise SystemExit(4)")
    found = made.run("search", request(tmp_path), folder, 60.0)
    assert isinstance(found, Failed) and "status 4" in found.reason


SERVES = """
import os, queue, sys, threading
from pathlib import Path
from cuda_agent_backend.bench import child
from cuda_agent_backend.bench.built_task import Place, build

def played(request):
    import torch
    built = build(Path(request.file), Place("cpu", torch.float32), 0)
    print("said by", request.file, flush=True)
    return {"pid": os.getpid(), "scale": built.model.scale}

child.PHASES["search"] = played
asked = queue.SimpleQueue()
threading.Thread(target=child.listen, args=(asked,), daemon=True).start()
child.serve("search", Path(sys.argv[2]), int(sys.argv[3]), asked)
"""
USES_ANOTHER = GOOD.replace("import torch\n", "import torch, common\n", 1).replace(
    "[0.5]", "[common.SCALE]"
)


def test_a_child_that_was_made_ready_takes_the_first_task_and_a_bad_one_ends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = "child.make_ready = lambda phase: print('ready for', phase, flush=True)\n"
    text = SERVES.replace("asked = queue", ready + "asked = queue").replace(
        "Path(sys.argv[2])", "None if sys.argv[2] == child.LATER else Path(sys.argv[2])"
    )
    made = child(tmp_path, monkeypatch, text)
    made.make_ready("search", 1, "cpu", tmp_path / "work")
    (waiting,) = made._idle["search"]
    raises = GOOD.replace("super().__init__()", "raise RuntimeError('bad from the start')")
    found: dict[str, Any] = {}
    for name, code in (("a", GOOD), ("b", raises), ("c", GOOD)):
        asked = replace(request(tmp_path), file=str(task(tmp_path / name / "t.py", code).path))
        found[name] = made.run("search", asked, tmp_path / "work" / name, 120.0)
    made.stop()
    assert found["a"]["pid"] == found["c"]["pid"] == waiting._process.pid
    assert isinstance(found["b"], Failed) and "bad from the start" in found["b"].reason
    assert (tmp_path / "work" / "search-0.log").read_text() == "ready for search\n"
    assert "said by" in (tmp_path / "work" / "a" / "search.log").read_text()


def test_a_child_that_was_made_ready_starts_its_search_before_there_is_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = """
child.make_ready = lambda phase: None
child.start_search = lambda request: print("starts", request.native_dir, flush=True)
"""
    text = SERVES.replace("asked = queue", ready + "asked = queue").replace(
        "Path(sys.argv[2])", "None"
    )
    made = child(tmp_path, monkeypatch, text)
    made.make_ready("search", 2, "cpu", tmp_path / "work")
    made.prepare("search", request(tmp_path), tmp_path / "work")
    asked = replace(request(tmp_path), file=str(task(tmp_path / "t" / "t.py").path))
    assert isinstance(made.run("search", asked, tmp_path / "work" / "t", 120.0), dict)
    said = (
        tmp_path / "work" / "search-1.log"
    )  # the one that was made ready last is given work first
    assert said.read_text() == f"starts {tmp_path}\n"
    made.stop()


def test_a_child_takes_the_next_task_unless_one_changed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = child(tmp_path, monkeypatch, SERVES)
    changes = GOOD + "\ntorch.backends.cudnn.benchmark = True\n"
    found = {}
    for name, text in (("a", USES_ANOTHER), ("b", USES_ANOTHER), ("c", changes), ("d", GOOD)):
        file = task(tmp_path / name / f"{name}.py", text).path
        (file.parent / "common.py").write_text(f"SCALE = {float(ord(name))}")
        asked = replace(request(tmp_path), file=str(file))
        found[name] = made.run("search", asked, tmp_path / "work" / name, 120.0)
        assert isinstance(found[name], dict), found[name]
        assert f"{name}.py" in (tmp_path / "work" / name / "search.log").read_text()
    made.stop()
    assert found["a"]["pid"] == found["b"]["pid"] == found["c"]["pid"] != found["d"]["pid"]
    assert [found[name]["scale"] for name in "ab"] == [float(ord("a")), float(ord("b"))]


def test_stopping_ends_what_runs_and_lets_nothing_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = child(tmp_path, monkeypatch, "import time; time.sleep(600)")
    threading.Timer(1.0, made.stop).start()
    for name in ("one", "two"):
        with pytest.raises(Interrupted):
            made.run("search", request(tmp_path), tmp_path / name, 300.0)


# Results.


def test_a_result_counts_as_long_as_nothing_that_it_depends_on_changes(tmp_path: Path) -> None:
    made = task(tmp_path / "tasks" / "a.py")
    identity = Identity("sources", WISHES, {"cpu": "x", "load": [1.0]})
    results = Results(tmp_path / "out", identity)
    assert results.done(made) is None
    results.keep(made, {"status": "measured"}, results.identity_of(made))
    assert (results.done(made) or {})["status"] == "measured"
    calmer = replace(identity, machine={"cpu": "x", "load": [9.0]})
    assert Results(tmp_path / "out", calmer).done(made)
    for other in (
        replace(identity, sources="others"),
        replace(identity, wishes=replace(WISHES, dtype="float16")),
        replace(identity, machine={"cpu": "y"}),
        replace(identity, cache_dir="elsewhere"),
    ):
        assert Results(tmp_path / "out", other).done(made) is None
    made.path.write_text(GOOD + "# another task")
    assert results.done(made) is None
    made.path.unlink()
    assert results.done(made) is None and results.identity_of(made) == ""
    results.keep(made, {"status": "failed"}, "")
    assert results.done(made) is None
    results.path(made).write_text("half of it {")
    assert results.done(made) is None


@pytest.mark.parametrize(
    ("status", "again", "wanted"),
    [
        (None, "", True),
        ("measured", "", False),
        ("failed", "", False),
        ("failed", "failed", True),
        ("timed_out", "failed", True),
        ("measured", "failed", False),
        ("measured", "all", True),
    ],
)
def test_what_is_done_again(status: str | None, again: str, wanted: bool) -> None:
    assert wanted_again({"status": status} if status else None, again) is wanted


FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


@pytest.mark.parametrize("status", ["measured", "failed"])
@pytest.mark.parametrize(
    ("again", "alone", "wanted"),
    [("", False, True), ("", True, False), ("failed", True, True), ("failed", False, True)],
)
def test_what_found_no_memory_is_done_once_it_was_run_alone(
    status: str, again: str, alone: bool, wanted: bool
) -> None:
    known = {"status": status, "search": {"graphs": [{"reason": FULL}]}, "alone": alone}
    assert wanted_again(known, again) is wanted


def test_a_failure_never_replaces_what_was_measured() -> None:
    measured, failed = {"status": "measured"}, {"status": "failed"}
    every = [(a, b) for a in (measured, failed) for b in (measured, failed)]
    assert [may_replace(found, known) for found, known in every] == [True, True, False, True]


@pytest.mark.parametrize(("again", "wanted"), [("", False), ("failed", True)])
def test_a_task_whose_search_was_cut_counts_as_done_and_as_one_that_failed(
    again: str, wanted: bool
) -> None:
    known = {"status": "measured", "search": {"status": "timed_out", "phase": "search"}}
    assert wanted_again(known, again) is wanted


def test_jobs_and_limits_grow_with_the_machine_and_the_budget() -> None:
    large = {"gpu_memory": 140 << 30}
    assert [jobs_of("cuda", large, cores) for cores in (1, 4, 16, 128)] == [1, 2, 10, 15]
    assert jobs_of("cuda", {"gpu_memory": 79 << 30}, 16) == 8
    assert jobs_of("cuda", {"gpu_memory": 24 << 30}, 16) == 2
    assert jobs_of("cuda", {"gpu_memory": 500 << 30}, 128) == 16
    assert jobs_of("cpu", {}, 64) == 1
    assert limit_of(120.0, 1) < limit_of(240.0, 1) < limit_of(240.0, 4)


@pytest.mark.parametrize(
    ("own", "whole", "seen", "there", "share"),
    [
        (32, 32, 1, 2, 16),
        (32, 32, 2, 2, 32),
        (16, 32, 1, 2, 16),  # somebody gave it a share already
        (4, 32, 1, 2, 4),
        (16, 128, 1, 8, 16),  # of a container with its GPU's share
        (12, 128, 1, 8, 12),
        (24, 32, 1, 2, 24),
        (10, 10, 3, 8, 3),
        (2, 2, 1, 8, 1),
        (32, 32, 1, 0, 32),  # nobody says how many there are
        (32, 32, 0, 2, 32),
    ],
)
def test_a_run_on_some_of_the_gpus_counts_on_its_share_of_the_cores(
    own: int, whole: int, seen: int, there: int, share: int
) -> None:
    assert share_of(own, whole, seen, there) == share


@pytest.mark.parametrize(("said", "many"), [("0\n1\n", 2), ("No devices were found\n", 0)])
def test_all_gpus_of_the_machine_are_counted(
    said: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "CARDS", (sys.executable, "-c", f"print({said!r}, end='')"))
    assert number_of_cards() == many
    monkeypatch.setattr(cores, "CARDS", ("/nonexistent/nvidia-smi",))
    assert number_of_cards() == 0


def test_a_container_with_fewer_cores_than_its_machine_does_not_have_them_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = len(os.sched_getaffinity(0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cores, "number_of_cards", lambda: 2)
    for whole, expected in ((own + 2, own), (own, max(1, own // 2))):
        monkeypatch.setattr(os, "cpu_count", lambda whole=whole: whole)
        assert cores.cores_of.__wrapped__("cuda") == expected


def test_each_device_has_turns_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = look_at_machine(tmp_path, WISHES, tmp_path, None, Children(tmp_path / "torch"))
    assert isinstance(found, Machine) and found.device_lock == default_lock("cpu")

    def lock_of(uuid: str) -> Path:
        properties = SimpleNamespace(uuid=uuid)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        return default_lock("cuda")

    assert lock_of("a") == lock_of("a")
    assert len({lock_of("a"), lock_of("b"), found.device_lock}) == 3


# The run.


def test_one_bad_task_harms_no_other_and_a_second_run_does_nothing(tmp_path: Path) -> None:
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in ("a", "bad", "c", "d")]
    played = Played()
    found = run_played(bench_of(tmp_path), tasks, played)
    assert [one["status"] for one in found] == ["measured", "failed", "measured", "measured"]
    assert found[1]["reason"] == "it broke" and found[1]["log"] == "log"
    assert "measure bad" not in played.ran
    second = Played()
    assert run_played(bench_of(tmp_path), tasks, second) == found and not second.ran
    run_played(bench_of(tmp_path, again="failed"), tasks, second)
    assert second.ran == ["search bad"]


@pytest.mark.parametrize("kind", [OutOfTime, TimedOut])
def test_a_task_whose_search_is_ended_at_the_limit_is_measured_with_what_there_is(
    kind: type[TimedOut], tmp_path: Path
) -> None:
    held = {"memory": {"allocated": 7}, "leases": {"race": {"leases": 1}}}

    class Late(Played):
        def run(self, phase: str, request: Request, folder: Path, limit_s: float) -> Any:
            found = super().run(phase, request, folder, limit_s)
            late = folder.name == "late" and phase == "search"
            return kind(phase, "not done", "log", **held) if late else found

    late = Late()
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in ("a", "late")]
    found = run_played(bench_of(tmp_path, limit_s=9.0), tasks, late)[1]
    if kind is TimedOut:  # the task's own code hangs
        assert found["status"] == "timed_out" and "measure late" not in late.ran
        return
    assert found["status"] == "measured" and found["measure"] == {"samples": {}}
    told = {"status": "timed_out", "reason": "not done", "log": "log", "phase": "search", **held}
    assert found["search"] == {**told, "seconds": 9.0}


def test_an_interruption_loses_nothing_that_is_done(tmp_path: Path) -> None:
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in ("a", "b", "c")]
    played = Played(die_at="c")
    with pytest.raises(KeyboardInterrupt):
        run_played(bench_of(tmp_path, jobs=1), tasks, played)
    assert played.stopped
    done = {file.stem for file in (tmp_path / "out" / "tasks").glob("*.json")}
    assert done <= {"a", "b"}
    second = Played()
    found = run_played(bench_of(tmp_path, jobs=1), tasks, second)
    assert [one["status"] for one in found] == ["measured"] * 3
    searched = {ran.removeprefix("search ") for ran in second.ran if ran.startswith("search ")}
    assert searched == {"a", "b", "c"} - done


def test_a_run_that_may_begin_nothing_more_finishes_what_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in ("a", "b", "c")]
    played = Played()
    clock = SimpleNamespace(monotonic=lambda: float(len(played.ran)))
    monkeypatch.setattr(runner, "time", clock)
    (one,) = run_played(bench_of(tmp_path, jobs=1, begin_within_s=0.5), tasks, played)
    assert played.ran == [f"search {one['name']}", f"measure {one['name']}"]
    assert len(run_played(bench_of(tmp_path, jobs=1), tasks, Played())) == 3


def test_the_time_in_which_tasks_are_begun_is_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look at the machine takes a minute, and whoever ends the command counts from its beginning."""
    tasks, played = [task(tmp_path / "t" / "a.py")], Played()
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: 160.0))
    limits = {"begin_within_s": 50.0, "started": 100.0}
    assert run_played(bench_of(tmp_path, **limits), tasks, played) == [] and not played.ran
    assert run_played(bench_of(tmp_path, begin_within_s=50.0), tasks, played)


def test_a_command_knows_when_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This process may have worked for as long already as a command's imports may take.
    most = run_times.MOST_IMPORTS_S + time.process_time()
    monkeypatch.setattr(run_times, "MOST_IMPORTS_S", most)
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    ticks = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"

    def began(seconds_ago: float) -> float:
        """Seconds ago, by what `/proc` says."""
        fields = ["S", *"0" * 18, str(int((boot - seconds_ago) * ticks))]
        stat.write_text(f"7 (a) name) {' '.join(fields)}")
        # Before the clock is read: else what this takes is missing, and a busy machine may show it.
        moment = run_times.process_began(stat)
        return time.monotonic() - moment

    least = time.process_time()
    assert least + 5.0 <= began(least + 6.0) <= least + 66.0
    for unlikely in (-1000.0, 100_000.0):
        assert least <= began(unlikely) <= time.process_time() + 1.0
    stat.write_text("nothing")
    assert run_times.process_began(stat) <= time.monotonic()
    assert run_times.process_began() <= time.monotonic()


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_what_was_searched_is_measured_before_another_search_begins(
    target: str, tmp_path: Path
) -> None:
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in "abcde"]
    played = Played(seconds=0.05)
    run_played(bench_of(tmp_path, jobs=1, wishes=replace(WISHES, target=target)), tasks, played)
    searched = [ran.removeprefix("search ") for ran in played.ran[::2]]
    assert played.ran[1::2] == [f"measure {name}" for name in searched]


class Crowded(Played):
    """Device memory is full until all tasks but the large ones were searched. `worse`: what then still fails."""

    worse = ""

    def run(self, phase: str, request: Request, folder: Path, limit_s: float) -> Any:
        full = self.ran.count(f"search {folder.name}") < (1 if phase == "search" else 2)
        if folder.name == self.worse and not full:
            return Failed(phase, "it broke")
        answer = super().run(phase, request, folder, limit_s)
        if folder.name == "large" and full:
            return Failed(phase, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
        if folder.name == "dropped" and full and phase == "search":
            return {"regions": [{"reason": "torch.OutOfMemoryError: CUDA out of memory"}]}
        return answer


def test_what_found_no_memory_beside_others_is_run_again_alone(tmp_path: Path) -> None:
    names = ("large", "dropped", "bad", "last")
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in names]
    played = Crowded()
    found = run_played(bench_of(tmp_path), tasks, played)
    assert [one["status"] for one in found] == ["measured", "measured", "failed", "measured"]
    assert not any(lacked_memory(one) for one in found)
    again = {f"{phase} {name}" for name in names[:2] for phase in ("search", "measure")}
    assert set(played.ran[played.ran.index("rest") + 1 : -1]) <= again <= set(played.ran[-5:])
    assert played.ran.count("search bad") == played.ran.count("search last") == 1


def test_a_file_that_goes_or_changes_while_it_is_run_harms_no_other(tmp_path: Path) -> None:
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in ("a", "changes", "goes", "last")]

    class Moving(Played):
        def run(self, phase: str, request: Request, folder: Path, limit_s: float) -> Any:
            file = Path(request.file)
            if folder.name == "goes":
                file.unlink(missing_ok=True)
            if folder.name == "changes":
                file.write_text(GOOD + "# another task")
            return super().run(phase, request, folder, limit_s)

    found = run_played(bench_of(tmp_path), tasks, Moving())
    assert [one["status"] for one in found] == ["measured"] * 4
    second = Played()
    run_played(bench_of(tmp_path), tasks, second)
    again = {f"{phase} {name}" for name in ("changes", "goes") for phase in ("search", "measure")}
    assert set(second.ran) == again


@pytest.mark.parametrize(
    ("jobs", "fewer"), [(1, []), (2, [1]), (5, [1]), (6, [2, 1]), (14, [4, 1])]
)
def test_what_found_no_memory_is_run_again_by_fewer_at_a_time(jobs: int, fewer: list[int]) -> None:
    assert runner.fewer_jobs(jobs) == fewer


def test_what_finds_room_beside_few_others_is_not_run_alone(tmp_path: Path) -> None:
    """Six at once find no memory, up to two do."""
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in "abcdefgh"]

    class Crowd(Played):
        searching = 0

        def run(self, phase: str, request: Request, folder: Path, limit_s: float) -> Any:
            if phase == "measure":
                return super().run(phase, request, folder, limit_s)
            with self.lock:
                self.searching += 1
                full = self.searching > 2
            answer = super().run(phase, request, folder, limit_s)
            with self.lock:
                self.searching -= 1
            return Failed(phase, "CUDA out of memory. Tried to allocate 2 GiB") if full else answer

    crowd = Crowd()
    found = run_played(bench_of(tmp_path, jobs=6), tasks, crowd)
    assert [one["status"] for one in found] == ["measured"] * 8
    assert all(1 <= crowd.ran.count(f"search {name}") <= 2 for name in "abcdefgh")
    assert sum(crowd.ran.count(f"search {name}") for name in "abcdefgh") > 8


def test_running_again_alone_replaces_no_result_by_none(tmp_path: Path) -> None:
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in ("large", "dropped")]
    worse = Crowded()
    worse.worse = "dropped"
    found = run_played(bench_of(tmp_path), tasks, worse)
    assert [one["status"] for one in found] == ["measured", "measured"]
    assert lacked_memory(found[1])
    alone_already = run_played(bench_of(tmp_path, jobs=1, again="all"), tasks[:1], Crowded())
    assert alone_already[0]["status"] == "failed"


class Cut(Crowded):
    """A run that is ended where tasks begin to be run alone."""

    def rest(self) -> None:
        raise KeyboardInterrupt


def test_what_a_run_that_was_cut_had_no_memory_for_is_run_by_the_next_one_after_new_tasks(
    tmp_path: Path,
) -> None:
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in ("large", "dropped", "bad")]
    with pytest.raises(KeyboardInterrupt):
        run_played(bench_of(tmp_path), tasks, Cut())
    tasks.append(task(tmp_path / "t" / "new.py"))
    second = Played()
    found = run_played(bench_of(tmp_path, jobs=1), tasks, second)
    assert not any(lacked_memory(one) for one in found)
    # Several threads begin at once: what is submitted first need not be searched first.
    assert "search new" in second.ran and "search bad" not in second.ran
    assert [one["name"] for one in found if one["status"] == "measured"] == [
        *("large", "dropped", "new")
    ]
    third = Played()
    assert run_played(bench_of(tmp_path), tasks, third) == found and not third.ran


def test_what_no_run_began_is_submitted_before_what_an_earlier_run_had_no_memory_for(
    tmp_path: Path,
) -> None:
    names = ("large", "done", "new", "newer")
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in names]
    known: dict[str, dict[str, Any] | None] = dict.fromkeys(names)
    known["large"] = {"status": "failed", "reason": FULL}
    known["done"] = {"status": "measured"}
    assert [one.name for one in runner.to_do(tasks, known, "")] == ["new", "newer", "large"]


def test_what_was_measured_and_finds_no_memory_when_it_is_run_again_is_run_alone(
    tmp_path: Path,
) -> None:
    """What was measured is kept meanwhile, and does not lack memory itself."""

    class Slow(Played):
        def run(self, phase: str, request: Request, folder: Path, limit_s: float) -> Any:
            found = super().run(phase, request, folder, limit_s)
            return OutOfTime(phase, "not done") if phase == "search" else found

    class Full(Played):
        def run(self, phase: str, request: Request, folder: Path, limit_s: float) -> Any:
            first = f"search {folder.name}" not in self.ran
            found = super().run(phase, request, folder, limit_s)
            return Failed(phase, FULL) if first else found

    tasks, full = [task(tmp_path / "t" / "a.py")], Full()
    (before,) = run_played(bench_of(tmp_path), tasks, Slow())
    assert before["status"] == "measured" and search_was_cut(before)
    (found,) = run_played(bench_of(tmp_path, again="failed"), tasks, full)
    assert full.ran == ["search a", "rest", "search a", "measure a"]
    assert found["status"] == "measured" and not search_was_cut(found)


def test_what_finds_no_memory_alone_either_is_not_run_by_each_later_run(tmp_path: Path) -> None:
    class Full(Played):
        def run(self, phase: str, request: Request, folder: Path, limit_s: float) -> Any:
            super().run(phase, request, folder, limit_s)
            return Failed(phase, FULL)

    tasks, full, second = [task(tmp_path / "t" / "a.py")], Full(), Full()
    (found,) = run_played(bench_of(tmp_path), tasks, full)
    assert lacked_memory(found) and full.ran.count("search a") == 2
    assert run_played(bench_of(tmp_path), tasks, second) == [found] and not second.ran
    run_played(bench_of(tmp_path, again="failed"), tasks, second)
    assert "search a" in second.ran


def test_what_a_later_run_has_no_time_to_begin_is_not_run_alone_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [task(tmp_path / "t" / "large.py")]
    with pytest.raises(KeyboardInterrupt):
        run_played(bench_of(tmp_path), tasks, Cut())
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: 9.0))
    late = Played()
    limits = {"begin_within_s": 1.0, "started": 0.0}
    (found,) = run_played(bench_of(tmp_path, **limits), tasks, late)
    assert lacked_memory(found) and not late.ran


def test_what_found_no_memory_is_run_again_though_the_runs_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [task(tmp_path / "t" / f"{name}.py") for name in ("large", "later")]
    played = Crowded()
    clock = SimpleNamespace(monotonic=lambda: float("rest" in played.ran))
    monkeypatch.setattr(runner, "time", clock)
    found = run_played(bench_of(tmp_path, begin_within_s=0.5), tasks, played)
    assert {one["name"]: one["status"] for one in found}["large"] == "measured"
    assert "rest" in played.ran


def test_only_a_run_of_everything_begins_with_an_empty_cache_of_its_own(tmp_path: Path) -> None:
    tasks = [task(tmp_path / "t" / "a.py")]
    given = tmp_path / "given"
    given.mkdir()
    run_played(bench_of(tmp_path, again="all", cache_dir=given), tasks, Played())
    assert given.exists()


def test_each_run_keeps_its_time_as_its_tasks_are_done(tmp_path: Path) -> None:
    assert run_times.of(tmp_path) == []
    first = run_times.RunClock(tmp_path)
    first.task_done("a", jobs=4)
    (alone,) = run_times.of(tmp_path)
    first.task_done("b", jobs=4)
    first.task_done("a", jobs=4)  # once more, alone
    run_times.RunClock(tmp_path).task_done("a", jobs=2)
    (one, two) = run_times.of(tmp_path)
    assert (alone["tasks"], one["tasks"], two["tasks"]) == (1, 2, 1)
    assert (one["jobs"], two["jobs"]) == (4, 2)
    assert 0 <= alone["seconds"] <= one["seconds"]
    for text in ("half of", "[]", '{"runs": 1}', "{}"):
        (tmp_path / "work" / "runs.json").write_text(text)
        assert run_times.of(tmp_path) == []


def test_a_time_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "work").write_text("a file where a folder is to be")
    run_times.RunClock(tmp_path).task_done("a", jobs=1)
    assert "was not written" in caplog.text


# All of it.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tasks"
    task(made / "easy" / "1_good.py")
    task(made / "easy" / "2_raises.py", RAISES)
    task(made / "hard" / "3_dies.py", DIES)
    (made / "hard" / "notes.py").write_text("x = 1")
    return made


def bench(folder: Path, out: Path, *more: str) -> int:
    words = ["bench", str(folder), "--out", str(out), "--device", "cpu", "--budget", "10"]
    return cli.main([*words, "--seconds", "0.5", "--rounds", "10", *more])


@pytest.mark.slow
def test_a_run_from_end_to_end(folder: Path, tmp_path: Path) -> None:
    out, told = tmp_path / "out", tmp_path / "told.json"
    assert bench(folder, out, "--max-autotune", "--json", str(told)) == 1
    found = json.loads((out / "bench.json").read_text())
    assert json.loads(told.read_text()) == found
    tasks = found["tasks"]
    assert {name: one["status"] for name, one in tasks.items()} == {
        "easy/1_good": "measured",
        "easy/2_raises": "failed",
        "hard/3_dies": "failed",
    }
    good = tasks["easy/1_good"]
    assert good["figures"]["correct"], good["figures"]["reason"]
    samples = good["measure"]["samples"]["wall"]
    assert {len(values) for values in samples.values()} == {10}
    assert set(samples) == {"eager", "inductor", "inductor_again", "cuda_agent", "max_autotune"}
    assert "never works" in tasks["easy/2_raises"]["reason"]
    assert tasks["hard/3_dies"]["reason"] == "killed by SIGKILL"
    assert "last words" in tasks["hard/3_dies"]["log"]
    assert [file["name"] for file in found["refused"]] == ["hard/notes"]
    assert found["summary"]["overall"]["tasks"] == 3
    assert [(one["tasks"], one["jobs"]) for one in found["runs"]] == [(3, 1)]
    assert set(found["summary"]["groups"]) == {"easy", "hard"}
    before = (out / "tasks/easy/1_good.json").stat().st_mtime_ns
    assert bench(folder, out, "--max-autotune") == 1
    assert (out / "tasks/easy/1_good.json").stat().st_mtime_ns == before
    assert json.loads((out / "bench.json").read_text())["runs"] == found["runs"]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)]
)
def test_a_command_that_ends_early_ends_its_children(
    folder: Path, tmp_path: Path, number: int, status: int
) -> None:
    (folder / "easy" / "1_good.py").write_text(
        GOOD
        + f"""
import os, time, pathlib
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
time.sleep(600)
"""
    )
    words = ["bench", str(folder / "easy"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    # whoever runs the tests in the background of a shell ignores interrupts, and so would the command
    process = subprocess.Popen(
        [sys.executable, "-m", "cuda_agent_backend", *words],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    search = int(text_in(tmp_path / "pid"))
    process.send_signal(number)
    assert process.wait(60) == status
    assert (tmp_path / "out" / "bench.json").exists() == (number != signal.SIGKILL)
    assert gone([search])


def test_paths_without_a_task_are_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path / "nowhere", tmp_path / "out") == 2
    assert "nowhere" in capsys.readouterr().err
    assert bench(tmp_path, tmp_path / "out") == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--jobs", "0"],
        ["--budget", "-1"],
        ["--dtype", "int8"],
        ["--part", "3/2"],
        ["--part", "0/2"],
    ],
)
def test_wrong_arguments_are_refused(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        bench(tmp_path, tmp_path / "out", *words)
    assert ended.value.code == 2
