"""What runs confined, side by side: when it is ended, and what is asked of the process that forks it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks import confined
from benchmarks.store import ROOT
from sandbox.workers import fork_server


def sleeps(value: float, folder: Path) -> dict[str, Any]:
    time.sleep(value)
    return {"slept": value}


def test_what_takes_too_long_is_ended() -> None:
    items = [("short", 0.0), ("long", 600.0)]
    for limit_s in (3.0, 30.0):  # more, where the short one had not begun in time
        found = dict(confined.each(items, sleeps, jobs=2, target="cpu", limit_s=limit_s))
        assert "not done" in found["long"]["failed"]
        if "slept" in found["short"]:
            break
    assert found["short"]["slept"] == 0.0


def test_several_that_take_too_long_are_all_ended() -> None:
    """One that was begun later and does not end either must not keep the first from its end."""
    items = [(f"long {n}", 600.0) for n in range(3)]
    found = dict(confined.each(items, sleeps, jobs=3, target="cpu", limit_s=3.0))
    assert len(found) == 3 and all("not done" in facts["failed"] for facts in found.values())


def remembers(value: int, folder: Path) -> dict[str, Any]:
    """Tells of the process that it ran in, and of what ran there before it."""
    seen = folder / "seen"
    before = seen.read_text().split() if seen.is_file() else []
    seen.write_text(" ".join((*before, str(value))))
    if value == DIES and not before:
        time.sleep(600)
    if value == DIES:
        os._exit(0)
    if value == RAISES:
        raise ValueError("of this one only")
    return {"process": os.getpid(), "before": list(map(int, before))}


DIES, RAISES = 3, 1


def test_several_share_a_process_and_one_that_ends_it_costs_itself_only() -> None:
    items = [(f"item {n}", n) for n in range(6)]
    found = dict(
        confined.each(items, remembers, jobs=1, target="cpu", limit_s=60.0, in_one=len(items))
    )
    assert found["item 0"]["before"] == [] and found["item 2"]["before"] == [0, 1]
    assert found["item 0"]["process"] == found["item 2"]["process"]
    assert found["item 1"]["failed"] == "ValueError: of this one only"
    assert found["item 3"]["failed"] == confined.NO_ANSWER
    assert found["item 4"]["before"] == [] and found["item 5"]["before"] == [4]
    assert all(facts["cpu_s"] >= 0.0 for facts in found.values() if "before" in facts)


def test_one_that_takes_too_long_has_those_behind_it_begin_anew() -> None:
    items = [(f"item {n}", n) for n in (DIES, 4, 5)]
    for limit_s in (3.0, 30.0):  # more, where the others had not begun in time
        how = {"jobs": 1, "target": "cpu", "limit_s": limit_s, "in_one": 3}
        found = dict(confined.each(items, remembers, **how))
        assert "not done" in found["item 3"]["failed"]
        if "before" in found["item 4"] and "before" in found["item 5"]:
            break
    assert found["item 4"]["before"] == [] and found["item 5"]["before"] == [4]


def test_items_are_spread_over_all_processes_before_they_share_one() -> None:
    items = [(f"item {n}", 10 + n) for n in range(4)]
    found = dict(confined.each(items, remembers, jobs=2, target="cpu", limit_s=60.0, in_one=9))
    shared = [len(facts["before"]) for facts in found.values()]
    assert sorted(shared) == [0, 0, 0, 1], shared


def test_what_is_looked_at_ends_with_the_group_of_who_looks() -> None:
    """As when `timeout` ends a run: all that still have the output open are gone at its end."""
    code = (
        "import os, time; from benchmarks import confined; out = os.dup(1)\n"
        "def work(value, folder):\n    os.write(out, b'begun\\n'); time.sleep(900)\n"
        "list(confined.each([('one', 1)], work, jobs=1, target='cpu', limit_s=800))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == b"begun\n"
    os.killpg(process.pid, signal.SIGTERM)
    assert process.stdout.read() == b"" and process.wait(60) == -signal.SIGTERM
    process.stdout.close()


class LeavesSlowly:
    """A process that answers at once, and is there for a while after it was let go, as where a driver cleans up."""

    there: ClassVar[set[LeavesSlowly]] = set()
    most = 0

    def __init__(
        self, wanted: Any, run: Callable[[Path], object], given: Sequence[int], kept: Sequence[int]
    ) -> None:
        self.asks = 0
        self.let = False
        run(Path())
        for descriptor in given:
            os.close(descriptor)
        self.there.add(self)
        LeavesSlowly.most = max(self.most, len(self.there))

    def let_go(self) -> None:
        self.let = True

    def ended(self) -> bool:
        self.asks += self.let
        if self.asks > 20:
            self.there.discard(self)
        return self.asks > 20

    def end(self) -> None:
        assert self.let
        self.there.discard(self)


def test_nobody_waits_for_what_leaves_and_few_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "ConfinedProcess", LeavesSlowly)
    monkeypatch.setattr(confined, "REAP_S", 0.0)
    items = [(str(n), 0.0) for n in range(60)]
    found = confined.each(items, sleeps, jobs=2, target="cpu", limit_s=9.0)
    first = [next(found)[0] for _ in range(confined.LEAVING)]
    assert len(LeavesSlowly.there) >= confined.LEAVING, "answers came while all were there"
    assert sorted([*first, *(name for name, _ in found)], key=int) == [name for name, _ in items]
    assert LeavesSlowly.most == 2 + confined.LEAVING and not LeavesSlowly.there


def test_nothing_is_forked_where_the_device_is_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "preload", lambda *modules, **more: None)
    monkeypatch.setattr(fork_server, "cuda_is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="driver"):
        confined.preload((), "cuda")
    confined.preload((), "cpu")


@pytest.mark.parametrize("wakes", [True, False])
def test_what_would_wake_the_device_is_left_to_each_process(
    monkeypatch: pytest.MonkeyPatch, wakes: bool
) -> None:
    done = list[str]()
    monkeypatch.setattr(fork_server, "preload", lambda *modules, **more: None)
    monkeypatch.setattr(fork_server, "cuda_is_initialized", lambda: wakes and bool(done))
    confined.preload((), "cuda", lambda: done.append("prepared"))
    assert done == ([] if wakes else ["prepared"])
    confined.preload((), "cpu", lambda: done.append("on cpu"))
    assert done[-1] == "on cpu" and fork_server.ASK_NVML not in os.environ
