"""Programs are looked at as regions are asked for, and one that fails costs itself only."""

from __future__ import annotations

import fcntl
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from trainer.synthesis.probe.request import ProbeRequest
from trainer.world import regions
from trainer.world.regions import AHEAD, RegionFinder
from trainer.world.sources import REGIONS, Region, Source


class Looks:
    """Stands for a process that looks at programs, whose text is the region that it has."""

    looked_at: list[str]
    slow = threading.Event()

    def __init__(self, lock: Path) -> None:
        self.lock = lock

    def probe(self, request: ProbeRequest) -> dict[str, Any]:
        self.looked_at.append(request.code)
        if request.code == "slow":
            assert self.slow.wait(30)
        if request.code == "breaks":
            raise OSError("no space left")
        return {"regions": [request.code]}

    def stop(self) -> None: ...


@pytest.fixture(autouse=True)
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(regions, "Prober", Looks)
    monkeypatch.setattr(Looks, "looked_at", [], raising=False)
    monkeypatch.setattr(Looks, "slow", threading.Event())
    return Looks.looked_at


def finder(folder: Path, jobs: int = 2) -> RegionFinder:
    return RegionFinder(folder, "cpu", jobs, 1 << 30, folder / "lock")


def programs(*codes: str) -> list[Source | Region]:
    return [Source(code, code) for code in codes]


def test_programs_are_looked_at_little_before_they_are_needed(
    tmp_path: Path, looked_at: list[str]
) -> None:
    with finder(tmp_path) as found:
        every = found.find(programs(*map(str, range(100))))
        next(every)
        every.close()
    assert 0 < len(looked_at) <= 2 * (2 + AHEAD)


def test_one_that_takes_long_holds_up_no_other(tmp_path: Path) -> None:
    with finder(tmp_path) as found:
        every = found.find(programs("slow", "a", "b"))
        first = [next(every)[0].task for _ in range(2)]
        assert sorted(first) == ["a", "b"]
        Looks.slow.set()
        assert [region.task for rest in every for region in rest] == ["slow"]


def test_one_that_fails_for_reasons_of_ours_costs_itself_only(tmp_path: Path) -> None:
    with finder(tmp_path) as found:
        tasks = [
            region.task for some in found.find(programs("a", "breaks", "b")) for region in some
        ]
        assert sorted(tasks) == ["a", "b"] and found.failed == 1


def test_what_a_full_disk_spoilt_is_looked_at_again(tmp_path: Path, looked_at: list[str]) -> None:
    with finder(tmp_path) as found:
        list(found.find(programs("a", "b")))
    lines = (tmp_path / REGIONS).read_text().splitlines()
    assert sorted(json.loads(line)["source"] for line in lines) == ["a", "b"]
    kept = next(line for line in lines if json.loads(line)["source"] == "a")
    (tmp_path / REGIONS).write_text(f"{kept[:20]}\n[]\n{kept}\n")
    looked_at.clear()
    with finder(tmp_path) as found:
        tasks = [region.task for some in found.find(programs("a", "b")) for region in some]
    assert sorted(tasks) == ["a", "b"] and looked_at == ["b"]


def test_a_run_that_begins_drops_nothing_that_another_one_is_writing(
    tmp_path: Path, looked_at: list[str]
) -> None:
    line = json.dumps({"source": "theirs", "regions": [{"source": "theirs", "task": "t"}]}) + "\n"
    begun = threading.Event()

    def begin() -> None:
        begun.set()
        with finder(tmp_path) as found:
            list(found.find(programs("mine")))

    mine = threading.Thread(target=begin, daemon=True)
    with (tmp_path / REGIONS).open("ab", buffering=0) as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        theirs.write(line[:20].encode())
        mine.start()
        assert begun.wait(30)
        mine.join(0.5)
        theirs.write(line[20:].encode())
        fcntl.flock(theirs, fcntl.LOCK_UN)
    mine.join(30)
    lines = [json.loads(one) for one in (tmp_path / REGIONS).read_text().splitlines()]
    assert [one["source"] for one in lines] == ["theirs", "mine"] and looked_at == ["mine"]


def test_a_line_that_a_kill_cut_off_is_removed(tmp_path: Path) -> None:
    with finder(tmp_path) as found:
        list(found.find(programs("a")))
    whole = (tmp_path / REGIONS).read_bytes()
    (tmp_path / REGIONS).write_bytes(whole + whole[:20])
    with finder(tmp_path):
        assert (tmp_path / REGIONS).read_bytes() == whole


def test_what_looks_at_programs_ends_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side_by_side = threading.Barrier(3)
    monkeypatch.setattr(Looks, "stop", lambda self: side_by_side.wait(30))
    with finder(tmp_path, jobs=3):
        pass
    assert not side_by_side.broken
