"""The practice set's result file: what belongs into it, and its rows."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import practice_large_figures
from benchmarks import practice_results as subject
from cuda_agent_backend.bench.discovery import TaskFile
from cuda_agent_backend.bench.report import Book
from cuda_agent_backend.bench.request import Wishes
from cuda_agent_backend.bench.results import Identity
from cuda_agent_backend.bench.run_times import RunClock
from cuda_agent_backend.bench.runner import Bench, Machine
from sandbox.failures import NoMemory
from sandbox.memory.footprint import CONTEXT_BYTES, PHASES
from sandbox.memory.notes import merged, noted

GB = 10**9

MACHINE = {"gpu": "some"}
NAMES = ("single/softmax_tiny_rows", "fused/layer_norm_linear_silu", "networks/tabular_mlp")


def task(name: str) -> TaskFile:
    group, _, stem = name.partition("/")
    return TaskFile(stem, group, subject.PRACTICE / group / f"{stem}.py")


def measured(ours: float, kernels: int) -> dict[str, Any]:
    times = {"eager": 3e-3, "inductor": 2e-3, "inductor_again": 2e-3, "cuda_agent": ours}
    samples = {name: [seconds] * 12 for name, seconds in times.items()}
    draws = [{"wrong": "", "as_inductor": False, "error_ratio": 0.123456789}]
    return {
        "draws": draws,
        "samples": {"device": samples, "wall": samples},
        "floor": {"bytes": 1, "operations": 0, "seconds": 1e-3},
        "kernels": kernels,
        "regions": 1,
    }


def run_of(folder: Path, wishes: Wishes | None = None, ours: float = 1e-3) -> Path:
    (folder / "work").mkdir(parents=True)
    (folder / "tasks").mkdir()
    (folder / "work" / "machine.json").write_text(json.dumps({"facts": MACHINE, "ceilings": {}}))
    wishes = wishes or Wishes("cuda")
    identity = Identity("sources", wishes, MACHINE)
    for name in NAMES:
        one = task(name)
        facts = {
            "name": one.name,
            "group": one.group,
            "file": str(one.path),
            "identity": identity.of(one),
            "wishes": asdict(wishes),
            "status": "measured",
            "measure": measured(ours, 1),
            "search": {"seconds": 1.0},
        }
        (folder / "tasks" / f"{one.name}.json").write_text(json.dumps(facts))
    return folder


TASKS = {task(name).path.stem: task(name) for name in NAMES}


def test_the_rows_count_what_is_faster_than_both_by_the_lower_bound(tmp_path: Path) -> None:
    for ours, expected in ((1e-3, 1), (1.95e-3, 0)):
        folder = run_of(tmp_path / str(ours), ours=ours)
        results = subject.results_in(folder, TASKS, "sources")
        content = subject.whole(results, list(TASKS.values()), [folder])
        rows = content["summary"]["table"]
        assert rows["correct"] == {"of": 3, "are": 3}
        for row in ("single_with_room_faster", "fused_with_product_faster", "networks_faster"):
            assert rows[row] == {"of": 1, "are": expected}
        assert rows["geomean_over_inductor"]["single"] == pytest.approx(2e-3 / ours)
        assert content["missing"] == [] and len(content["machine"]) == 1
    draw = content["tasks"]["softmax_tiny_rows"]["measure"]["draws"][0]
    assert draw["error_ratio"] == 0.12346


def test_results_of_other_sources_or_ways_are_refused(tmp_path: Path) -> None:
    one = run_of(tmp_path / "one")
    with pytest.raises(subject.Foreign, match="these sources"):
        subject.results_in(one, TASKS, "other sources")
    other = run_of(tmp_path / "other", Wishes("cuda", float32="ieee"))
    both = [
        *subject.results_in(one, TASKS, "sources"),
        *subject.results_in(other, TASKS, "sources"),
    ]
    with pytest.raises(subject.Foreign, match="2 ways"):
        subject.one_way(both)


def test_a_task_has_one_result_and_is_one_of_the_set(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run")
    results = subject.results_in(folder, TASKS, "sources")
    with pytest.raises(subject.Foreign, match=r"more than one result.*tabular_mlp"):
        subject.whole([*results, results[-1]], list(TASKS.values()), [folder])
    with pytest.raises(subject.Foreign, match="there is no task"):
        subject.results_in(folder, {}, "sources")


def book_of(folder: Path) -> Path:
    """The run's own `bench.json`, as its command writes it."""
    bench = Bench(folder, Wishes("cuda"), 2, 60.0, folder / "native", folder / "lock")
    machine = Machine(MACHINE, {"bytes_per_s": 1e12}, folder / "lock")
    book = Book(bench, machine, "sources", [], [*TASKS, "not_done"])
    for facts in subject.results_in(folder, TASKS, "sources"):
        book.add(facts)
    book.write()
    return book.path


def test_one_file_brings_a_run_home(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run")
    RunClock(folder).task_done("softmax_tiny_rows", jobs=2)
    expected = subject.results_in(folder, TASKS, "sources")
    brought = tmp_path / "elsewhere.json"
    shutil.copy(book_of(folder), brought)
    shutil.rmtree(folder / "tasks")
    shutil.rmtree(folder / "work")
    for place in (brought, folder):
        found = subject.results_in(place, TASKS, "sources")
        assert by_name(found) == by_name(expected) and len(found) == 3
        content = subject.whole(found, list(TASKS.values()), [place], large=True)
        assert content["machine"] == [{"facts": MACHINE, "ceilings": {"bytes_per_s": 1e12}}]
        assert content["runs"][0][0]["jobs"] == 2 and content["missing"] == []
        with pytest.raises(subject.Foreign, match="these sources"):
            subject.results_in(place, TASKS, "other sources")


def by_name(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {facts["name"]: subject.brief(facts) for facts in results}


def test_in_a_folder_a_tasks_own_file_counts_as_bench_json_may_be_older(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run")
    old = json.loads(book_of(folder).read_text())
    old["tasks"].popitem()
    (folder / "bench.json").write_text(json.dumps(old))
    assert len(subject.results_in(folder, TASKS, "sources")) == 3


@pytest.mark.parametrize("text", [None, "half of it {", "[]", '{"tasks": {}}'])
def test_what_is_no_run_is_refused(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "bench.json").write_text(text)
    for place in (tmp_path, tmp_path / "bench.json"):
        with pytest.raises(subject.Foreign, match=r"no bench\.json"):
            subject.run_in(place)


def test_tasks_without_a_result_are_named(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run")
    more = [*TASKS.values(), TaskFile("unmeasured", "single", Path("unmeasured.py"))]
    content = subject.whole(subject.results_in(folder, TASKS, "sources"), more, [folder])
    assert content["missing"] == ["unmeasured"] and content["runs"] == [[]]
    assert content["summary"]["table"]["measured"] == {"of": 4, "are": 3}


def test_which_fused_tasks_hold_a_product() -> None:
    assert subject.holds_product("layer_norm_linear_silu")
    assert not subject.holds_product("focal_loss_of_pixels")


def test_kernels_that_do_not_name_their_sketch_are_counted_as_what_they_are(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    results = subject.results_in(folder, TASKS, "sources")
    label = json.dumps([{"team": 32, "each": 5, "rewrite": "layouts"}])
    results[0]["measure"]["graphs"] = [{"regions": [{"status": "hit", "label": label}]}]
    assert subject.kinds(results[0]) == {"sketch sort", "rewrite layouts"}


@pytest.mark.parametrize(("ours", "near"), [(1.0e-3, 1), (1.029e-3, 1), (1.04e-3, 0)])
def test_of_tasks_at_the_limit_those_near_the_floor_are_counted(
    ours: float, near: int, tmp_path: Path
) -> None:
    folder = run_of(tmp_path, ours=ours)
    results = subject.results_in(folder, TASKS, "sources")
    results[0]["measure"]["samples"]["device"]["eager"] = [1.04e-3] * 12
    rows = subject.whole(results, list(TASKS.values()), [folder])["summary"]["table"]
    assert rows["at_limit_near_floor"] == {"of": 1, "are": near}
    results[0]["measure"]["draws"][0]["wrong"] = "values"
    rows = subject.whole(results, list(TASKS.values()), [folder])["summary"]["table"]
    assert rows["at_limit_near_floor"] == {"of": 1, "are": 0}


def test_what_a_sketch_or_rewrite_brings_is_what_is_lost_without_its_tasks(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    results = subject.results_in(folder, TASKS, "sources")
    label = json.dumps([{"sketch": "contract", "rewrite": "merged_scales"}, {"sketch": "row"}])
    hit = {"status": "hit", "label": label}
    results[0]["measure"]["graphs"] = [{"regions": [hit, {"status": "miss", "label": ""}]}]
    found = subject.whole(results, list(TASKS.values()), [folder])["summary"]["brought"]
    assert found["all"] == pytest.approx(2.0)
    left = pytest.approx(2.0 ** (2 / 3))
    for name in ("sketch contract", "sketch row", "rewrite merged_scales"):
        assert found[name] == {"used": 1, "without": left}
    assert len(found) == 4


def test_the_large_set_has_rows_of_its_own(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    results = subject.results_in(folder, TASKS, "sources")
    peak_of_measure = 6e9
    clock = {"runs": [{"seconds": 12.0, "tasks": 2, "jobs": 1}, {"seconds": 15.0}]}
    (folder / "work" / "runs.json").write_text(json.dumps(clock))
    for facts, peak in zip(results, (4e9, peak_of_measure, None), strict=True):
        facts["measure"]["floor"]["tensors"] = 1_000_000_000
        facts["measure"]["memory"] = {"processes": peak, "device": None}
    results[0]["search"]["memory"] = {"processes": None, "device": 14e9, "device_before": 4e9}
    results[2] |= {"status": "failed", "reason": "torch.OutOfMemoryError: CUDA out of memory"}
    rows = subject.whole(results, list(TASKS.values()), [folder], large=True)["summary"]["table"]
    assert (rows["tasks"], rows["correct"]) == (3, 2)
    assert rows["failed_for_memory"] == [results[2]["name"]]
    assert rows["slower_than_inductor"] == []
    assert rows["card_seconds_for_each_task"] == pytest.approx(9.0)
    search, measure = rows["memory"]["search"], rows["memory"]["measure"]
    assert search["known"] == 1 and search["beyond"] == [results[0]["name"]]
    assert measure["known"] == 2 and measure["beyond"] == [results[1]["name"]]
    assert measure["worst"] == pytest.approx(peak_of_measure / (4.5e9 + CONTEXT_BYTES))
    assert "6 contexts" in search["bound"] and "1 of the contexts" in measure["bound"]


def test_what_asks_has_its_inputs_and_every_process_a_context(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    results = subject.results_in(folder, TASKS, "sources")
    bound = 4.5e9 + 6 * CONTEXT_BYTES + 700_000_000
    for facts, peak in zip(results, (bound, bound + 2, None), strict=True):
        facts["given"] = 700_000_000
        facts["measure"]["floor"]["tensors"] = 1_000_000_000
        facts["search"]["memory"] = {"processes": peak, "device": None}
    rows = subject.whole(results, list(TASKS.values()), [folder], large=True)
    search = rows["summary"]["table"]["memory"]["search"]
    assert search["known"] == 2 and search["beyond"] == [results[1]["name"]]
    assert rows["tasks"][results[0]["name"]]["given"] == 700_000_000


def test_each_phase_of_a_search_has_a_row(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    results = subject.results_in(folder, TASKS, "sources")
    within = noted("check", 4 * GB, 8 * GB, 3 * GB)
    beyond = noted("check, again", 2 * GB, 8 * GB, 9 * GB)
    results[0]["search"]["leases"] = merged([within, noted("race", 4 * GB, 4 * GB, None)])
    results[1]["search"]["leases"] = merged([within, beyond])
    rows = practice_large_figures.held(results)
    assert list(rows) == ["search", "measure", *PHASES]
    check, race = rows["check"], rows["race"]
    assert check["known"] == 2 and check["worst"] == pytest.approx(9 / 8)
    assert check["beyond"] == check["beyond_lease"] == [results[1]["name"]]
    assert race["known"] == 0 and race["worst"] is None


def test_the_table_says_which_tasks_go_beyond_the_contract_though_within_their_bound(
    tmp_path: Path,
) -> None:
    folder = run_of(tmp_path)
    results = subject.results_in(folder, TASKS, "sources")
    names = [facts["name"] for facts in results]
    allowed = 2.5 * GB + (2 << 30)
    for facts, over in zip(results, (1.01, 0.99, 1.0), strict=True):
        facts["given"] = 2 * GB
        facts["measure"]["floor"]["tensors"] = GB
        held = over * allowed + 6 * CONTEXT_BYTES
        facts["search"]["memory"] = {"processes": held, "device": None}
    eager_takes_much = noted("check", 7 * GB, 8 * GB, 6 * GB)
    results[1]["search"]["leases"] = merged([noted("race", GB, 8 * GB, None), eager_takes_much])
    content = subject.whole(results, list(TASKS.values()), [folder], large=True)
    table = content["summary"]["table"]
    assert table["beyond_contract"] == {names[0]: ["search"], names[1]: ["check"]}
    memory = table["memory"]
    for phase, name in (("search", names[0]), ("check", names[1])):
        assert memory[phase]["beyond"] == [], "it may hold what it was given, or what eager takes"
        assert memory[phase]["of_contract"]["beyond"] == [name]
    assert memory["search"]["of_contract"]["worst"] == pytest.approx(1.01)
    assert memory["check"]["of_contract"]["known"] == 1
    assert memory["race"]["of_contract"]["known"] == memory["measure"]["of_contract"]["known"] == 0
    assert "2 GiB" in memory["search"]["of_contract"]["bound"]


def test_a_task_whose_search_was_cut_is_named(tmp_path: Path) -> None:
    results = subject.results_in(run_of(tmp_path / "run"), TASKS, "sources")
    results[1]["search"] = {"status": "timed_out", "reason": "x", "seconds": 9.0, "memory": {}}
    content = subject.whole(results, list(TASKS.values()), [tmp_path / "run"], large=True)
    assert content["summary"]["table"]["search_cut"] == [results[1]["name"]]
    assert content["summary"]["table"]["correct"] == 3


def test_what_says_why_it_cannot_be_searched_has_not_failed_for_memory(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    told = NoMemory("race", 50 * GB, 39 * GB, 40 * GB).reason
    first, second, third = subject.results_in(folder, TASKS, "sources")
    first["search"]["graphs"] = [{"regions": [{"reason": f"baselines: {told}"}]}]
    second["search"]["graphs"] = [
        {"regions": [{"reason": NoMemory("race", 9, 8, 8, False).reason}]}
    ]
    third |= {"status": "failed", "reason": told}
    for facts in (first, second, third):
        facts["measure"]["floor"]["tensors"] = 1
    rows = subject.whole([first, second, third], list(TASKS.values()), [folder], large=True)
    table = rows["summary"]["table"]
    assert table["not_searched_for_memory"] == [first["name"], second["name"]]
    assert table["failed_for_memory"] == [third["name"]]
    first["search"]["graphs"][0]["regions"].append({"reason": "CUDA out of memory"})
    assert practice_large_figures.ran_out(first) and not practice_large_figures.says_why(first)


def test_a_slower_task_of_the_large_set_is_named(tmp_path: Path) -> None:
    folder = run_of(tmp_path, ours=2.5e-3)
    results = subject.results_in(folder, TASKS, "sources")
    rows = subject.whole(results, list(TASKS.values()), [folder], large=True)["summary"]["table"]
    assert rows["slower_than_inductor"] == [facts["name"] for facts in results]
    assert rows["geomean_over_inductor"]["all"] == pytest.approx(0.8)
