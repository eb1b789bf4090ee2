"""In which order regions are measured, what is made ready ahead of that, and what is left when the time is up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainer.world import ahead as ahead_module
from trainer.world import skipped
from trainer.world.ahead import Ahead, Deadline, side_by_side
from trainer.world.sources import Region, Source, in_order, in_passes


def regions(*names: str) -> list[Region]:
    """``a1`` is of the program ``a``."""
    return [Region(name[0], name) for name in names]


def test_every_program_has_a_region_measured_before_any_has_a_second() -> None:
    programs = [regions("a1", "a2", "a3"), [], regions("b1"), regions("c1", "c2")]
    found = [region.task for region in in_passes(programs)]
    assert found == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_regions_that_come_one_by_one_are_told_apart_by_their_programs() -> None:
    found = in_passes([one] for one in regions("a1", "a2", "b1", "a3"))
    assert [region.task for region in found] == ["a1", "b1", "a2", "a3"]


def test_no_program_is_looked_at_before_its_region_is_asked_for() -> None:
    looked_at: list[str] = []

    def look() -> Iterator[Sequence[Region]]:
        for name in "abc":
            looked_at.append(name)
            yield regions(f"{name}1", f"{name}2")

    found = in_passes(look())
    assert next(found).task == "a1" and looked_at == ["a"]
    assert next(found).task == "b1" and looked_at == ["a", "b"]


def test_programs_without_a_table_come_first_and_large_ones_last() -> None:
    small, large = Source("small", ""), Source("large", "", large=True)
    done, one = Source("done", ""), Region("done", "t")
    usual, last = in_order([large, done, one, small], frozenset({"done"}))
    assert usual == [small, done, one] and last == [large]


def prepared(
    items: Sequence[str], deadline: Deadline | None = None, ahead: int = 2, **of: threading.Event
) -> Ahead[str, str]:
    """of: items that wait for an event. Those whose names begin with l take long, of those with n nothing comes."""

    def prepare(item: str) -> str | None:
        if item in of:
            assert of[item].wait(30)
        return None if item.startswith("n") else item

    found = deadline or Deadline()
    return Ahead(iter(items), prepare, ahead, found, lambda item: item.startswith("l"))


def test_all_that_something_comes_of_is_ready_once() -> None:
    found = prepared(["a", "n", "b", "l", "c"])
    assert sorted(found) == ["a", "b", "c", "l"]
    found.close()


def test_one_that_takes_long_holds_up_no_other() -> None:
    release = threading.Event()
    found = prepared(["l", "l2", *"abcdef"], l=release)
    every = iter(found)
    assert sorted(next(every) for _ in "abcdef") == list("abcdef")
    release.set()
    assert sorted(every) == ["l", "l2"]
    found.close()


def test_with_none_ahead_nothing_is_done_between_one_and_the_next() -> None:
    begun: list[str] = []

    def prepare(item: str) -> str:
        begun.append(item)
        return item

    found = Ahead(iter("abc"), prepare, 0, Deadline())
    every = iter(found)
    assert next(every) == "a"
    time.sleep(0.05)
    assert begun == ["a"] and list(every) == ["b", "c"]
    found.close()


def test_when_the_time_is_up_what_is_not_ready_is_left() -> None:
    never, deadline = threading.Event(), Deadline(0.5)
    found = prepared(["a", "slow", "b"], deadline, slow=never)
    began = time.monotonic()
    for _ in found:
        deadline.has_table = True
    assert time.monotonic() - began < 20
    found.close()
    never.set()


def test_the_first_table_is_waited_for_though_the_time_is_up() -> None:
    late = threading.Event()
    deadline = Deadline(0.0)
    found = prepared(["slow", "b"], deadline, slow=late)
    threading.Timer(0.3, late.set).start()
    assert next(iter(found)) == "slow"
    deadline.has_table = True
    assert list(found) == []
    found.close()


def test_what_was_begun_in_time_has_a_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(ahead_module.time, "monotonic", lambda: now[0])
    deadline = Deadline(100.0)
    said = []
    for has_table in (False, True):
        deadline.has_table = has_table
        for seconds in (99.0, 101.0, 101.0 + ahead_module.SPARE_S):
            now[0] = seconds
            said.append((deadline.is_over(), deadline.cuts()))
    assert said == [(False, False)] * 4 + [(True, False), (True, True)]


def test_of_many_pieces_few_are_with_the_threads_at_once() -> None:
    done: list[int] = []
    may = threading.Semaphore(0)

    def work(number: int) -> int:
        may.acquire()
        done.append(number)
        return -number

    with ThreadPoolExecutor(max_workers=1) as threads, ThreadPoolExecutor(1) as own:
        many = own.submit(side_by_side, threads, work, range(40), 4)
        may.release()
        while not done:
            time.sleep(0.001)
        late = threads.submit(work, 99)
        for _ in range(40):
            may.release()
        late.result()
        assert done.index(99) <= 1 + 4, "it waits for those that are with the threads"
        assert many.result() == [-number for number in range(40)]


def test_regions_without_a_table_are_known_to_later_runs_of_the_same_generator(
    tmp_path: Path,
) -> None:
    assert skipped.known(tmp_path / skipped.NAME) == frozenset()
    skipped.keep(tmp_path, "one", "not covered")
    skipped.keep(tmp_path, "", "not a task")
    with (tmp_path / skipped.NAME).open("a") as file:
        file.write(json.dumps({"id": "other", "reason": "x", "generator": "another"}) + "\n")
        file.write(json.dumps({"id": "old", "reason": "x"}) + "\n")
        file.write('{"id": "cut')
    assert skipped.known(tmp_path / skipped.NAME) == {"one"}
