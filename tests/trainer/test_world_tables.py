"""What tables hold, how they are kept, and judgements that are answered from them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from world_kit import FILE, measured

from cuda_agent_backend.agent.loop import Budget, run_episode
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.protocol import ToolCall
from cuda_agent_backend.codegen.ir.failure import NotCovered
from sandbox.failures import CompileFailed, TimedOut
from sandbox.judge.glance import GLANCES, MOST_GLANCES
from sandbox.judge.survey import Found
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Task
from sandbox.timing import decision
from trainer.world.families import POINTWISE, family_of
from trainer.world.files import part, read, write
from trainer.world.replay import Replay
from trainer.world.replay_tools import NOT_MEASURED, ReplayTools, enough_pairs
from trainer.world.row_of import kernel_facts, row_of
from trainer.world.rows import from_dict, table_id, to_dict
from trainer.world.schedules import enumerate_schedules, is_whole, sampled
from trainer.world.sources import NoTasks, Region, Source, part_of, sources


def test_tables_come_back_from_a_file_as_they_were(tmp_path: Path) -> None:
    tables = list(measured())
    write(tables, tmp_path / "all.parquet")
    assert read([tmp_path / "all.parquet"]) == tables
    assert [from_dict(to_dict(table)) for table in tables] == tables


def test_a_runs_folder_is_read_and_equal_tables_come_once(tmp_path: Path) -> None:
    for table in measured()[:3]:
        write([table], part(tmp_path, table.id))
    assert read([tmp_path, FILE]) == list(measured())
    assert [t.id for t in read([tmp_path])] == sorted(t.id for t in measured()[:3])


def test_what_holds_no_tables_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "not.parquet").write_text("no")
    with pytest.raises(ValueError, match="holds no tables"):
        read([tmp_path / "not.parquet"])
    with pytest.raises(FileNotFoundError):
        read([tmp_path / "missing"])


def test_an_id_is_the_regions_and_the_devices() -> None:
    assert table_id("a", "b", "c") == table_id("a", "b", "c")
    assert len({table_id(*names) for names in ("abc", "xbc", "axc", "abx")}) == 4
    for table in measured():
        assert table.id == table_id(table.parsed.digest, table.arch, table.device_name)


def test_a_familys_name_is_what_shapes_the_kernel() -> None:
    found = {table.family for table in measured()}
    assert {"var", "sum", "addmm", "amax+any+sum"} <= found
    flat = Task(
        "cpu",
        (SPEC,),
        (Node("aten.exp.default", {"self": InputRef(0)}),),
        (NodeRef(0),),
        (SPEC,),
    )
    assert family_of(flat) == POINTWISE
    for table in measured():
        assert family_of(table.parsed) == table.family


def test_a_leaders_speed_is_what_it_was_among_the_leaders() -> None:
    rows = [row for table in measured() for row in table.rows if row.works]
    assert any(row.retimed for row in rows)
    for row in rows:
        own, other = (
            (row.retimed, row.retimed_baseline) if row.retimed else (row.seconds, row.baseline)
        )
        ratios = sorted(b / c for b, c in zip(other, own, strict=True))
        assert row.speed is not None and ratios[0] <= row.speed <= ratios[-1]
        assert len(row.pairs) == len(own)


def test_what_may_pass_leaves_no_row_and_what_is_final_its_answer() -> None:
    found = enumerate_schedules(measured()[-1].parsed)
    assert not isinstance(found, NotCovered)
    one = found.legal[0]
    killed, broken = (
        CompileFailed("Killed signal terminated program"),
        CompileFailed("k:1: error: x"),
    )
    assert row_of(one, killed, Found(killed)) is None
    assert row_of(one, broken, Found(TimedOut("run", 1.0))) is None
    row = row_of(one, broken, Found(broken))
    assert row is not None and row.status == "compile_failed" and not row.works
    assert json.loads(row.answer)["ok"] is False and "error" in json.loads(row.answer)


def test_facts_of_kernels_become_the_worst_of_them() -> None:
    facts = {
        "a": {"registers": 32, "spill_store_bytes": 8, "spill_load_bytes": 4, "occupancy": 0.5},
        "b": {"registers": 64, "spill_store_bytes": 0, "shared_bytes": 128, "occupancy": 0.75},
    }
    row = kernel_facts(facts)
    assert (row["kernels"], row["registers"], row["spill_bytes"]) == (2, 64, 12)
    assert (row["shared_bytes"], row["occupancy"]) == (128, 0.5)
    assert kernel_facts({})["registers"] is None


def test_candidates_are_drawn_the_same_each_time_and_proposals_are_among_them() -> None:
    table = max(measured(), key=lambda t: t.legal)
    found = enumerate_schedules(table.parsed)
    assert not isinstance(found, NotCovered)
    assert len({one.name for one in found.legal}) == len(found.legal)
    most = sum(one.proposed for one in found.legal) + 3
    drawn = sampled(found, most, "seed")
    assert drawn == sampled(found, most, "seed") and len(drawn) == most
    assert {o.name for o in found.legal if o.proposed} <= {o.name for o in drawn}
    assert [o.rank for o in drawn] == sorted(o.rank for o in drawn)
    assert sampled(found, 0, "") == list(found.legal)


def test_every_so_manieth_task_has_all_its_schedules() -> None:
    digests = [f"{number:08x}rest" for number in range(20)]
    assert [d for d in digests if is_whole(d, 10)] == [digests[0], digests[10]]
    assert not any(is_whole(d, 0) for d in digests)


def test_programs_with_a_large_input_come_last(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    shapes = {"large": [1 << 9, 1 << 20], "half": [1 << 7, 1 << 20], "small": [4]}
    dtypes = {"large": "uint8", "half": "bfloat16", "small": "float32"}
    rows = [
        {"id": name, "code": PROGRAM, "inputs": [{"shape": shape, "dtype": dtypes[name]}]}
        for name, shape in shapes.items()
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "set.parquet")

    def order(*most: int) -> list[str]:
        found = sources([tmp_path / "set.parquet"], *most)
        assert not isinstance(found, NoTasks)
        return [one.name for one in found if isinstance(one, Source)]

    assert order() == ["half", "small", "large"]
    assert order(1 << 20) == ["small", "large", "half"]
    assert order(1 << 40) == ["large", "half", "small"]
    found = sources([tmp_path / "set.parquet"])
    assert not isinstance(found, NoTasks)
    assert [one.large for one in found if isinstance(one, Source)] == [False, False, True]


SPEC = TensorSpec("float32", (8, 8), (8, 1))
PROGRAM = "TRAINING = True\nclass Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


def test_programs_and_regions_are_found_in_files(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(PROGRAM)
    region = Region("from", measured()[0].task, ("f",), "test")
    line = json.dumps({"source": "from", "regions": [region.to_json()]})
    (tmp_path / "known.jsonl").write_text(f"{line}\n{line[:10]}")
    (tmp_path / "task.json").write_text(measured()[0].task)
    paths = [tmp_path / name for name in ("one.py", "known.jsonl", "task.json")]
    found = sources(paths)
    assert not isinstance(found, NoTasks)
    assert found == [Source("one", PROGRAM, True), region, Region("task", measured()[0].task)]
    assert part_of(found, 2, 2) == [region]
    for name, text in (("bad.json", "{"), ("bad.jsonl", '{"regions": [{}]}\n')):
        (tmp_path / name).write_text(text)
        refused = sources([tmp_path / name])
        assert isinstance(refused, NoTasks) and name in refused.reason


def test_judgements_are_drawn_from_what_was_timed_and_repeat_by_seed() -> None:
    table = next(t for t in measured() if t.best > 0)
    one, same, other = Replay(table, 1), Replay(table, 1), Replay(table, 2)
    numbers = [n for n in range(len(table.rows)) for _ in range(5)]
    found = [one.judge(n) for n in numbers]
    assert found == [same.judge(n) for n in numbers] != [other.judge(n) for n in numbers]
    for n, judged in zip(numbers, found, strict=True):
        row = table.rows[n]
        assert judged.works is row.works and judged.seconds == row.judging_s
        if row.works:
            ratios = [b / c for b, c in zip(row.baseline, row.seconds, strict=True)]
            assert min(ratios) <= judged.low <= judged.speed <= judged.high <= max(ratios)
        else:
            assert judged.speed == 0.0 and judged.status == row.status


def test_a_judgement_sees_as_many_pairs_as_a_profile_takes() -> None:
    table = next(t for t in measured() if t.best > 0)
    row = max(table.rows, key=lambda row: row.speed or 0.0)
    calm, wild = [1e-3] * 4, [1e-3, 2e-3, 1e-3, 4e-3]
    rows = (replace(row, seconds=calm, baseline=calm), replace(row, seconds=wild, baseline=calm))
    replay = Replay(replace(table, rows=rows), 1)
    assert len(replay.draw(0)) == GLANCES
    assert len(replay.draw(1)) == MOST_GLANCES
    assert len(replay.draw(1, worth=3.0)) == GLANCES, "it is without hope"
    after = [Replay(replace(table, rows=rows), 2) for _ in range(2)]
    first = [replay.draw(1, worth) for replay, worth in zip(after, (0.0, 3.0), strict=True)]
    assert len(first[0]) > len(first[1]) == GLANCES
    assert after[0].draw(1) == after[1].draw(1), "what is heard next hangs on what was heard first"


def test_the_search_plays_whole_episodes_on_tables() -> None:
    ended = []
    for table in measured():
        tools = ReplayTools.of(table)
        result = run_episode(SearchPolicy(), tools, Budget(math.inf))
        ended.append(result.best is not None)
        assert tools.finished and set(tools.profiles) <= {row.candidate for row in table.rows}
    assert any(ended) and not all(ended)


def test_what_was_wrong_or_not_measured_is_answered_as_it_would_be() -> None:
    table = next(t for t in measured() if t.rows[0].status == "wrong")
    tools = ReplayTools.of(table)

    def ask(name: str, **arguments: object) -> dict[str, object]:
        (message,) = tools.run([ToolCall.of("1", name, **arguments)])
        found: dict[str, object] = json.loads(message["content"])
        return found

    wrong = table.rows[0]
    assert ask("sketch", schedule=json.loads(wrong.schedules[0]))["candidate"] == wrong.candidate
    assert ask("profile", candidate=wrong.candidate)["status"] == "wrong"
    verdict = ask("submit", candidate=wrong.candidate)
    assert (verdict["ok"], verdict["status"], verdict["reward"]) == (False, "wrong", -1.0)
    unknown = ask("sketch", schedule=[{"sketch": "none"}])
    assert unknown["ok"] is False and unknown["error"] == NOT_MEASURED
    assert tools.finished is None


def test_a_verdict_needs_no_more_pairs_than_a_table_took_away_from_its_best() -> None:
    few = ((3.0, 1.0), (2.0, 1.0), (4.0, 1.0), (3.1, 1.0))
    many = enough_pairs(few)
    assert len(many) == decision.MIN_PAIRS and set(many) == set(few)
    assert enough_pairs(many) == many
    samples = {"eager": [b for b, _ in many], "candidate": [c for _, c in many]}
    found = decision.report(samples)
    assert found.wins and found.speedup.low == 2.0


def test_what_is_far_from_a_tables_best_and_faster_than_the_baselines_wins() -> None:
    short = 0
    for table in measured():
        for row in (r for r in table.rows if r.works and len(r.pairs) < decision.MIN_PAIRS):
            tools, schedule = ReplayTools.of(table), json.loads(row.schedules[0])
            tools.run([ToolCall.of("1", "sketch", schedule=schedule)])
            (answer,) = tools.run([ToolCall.of("2", "submit", candidate=row.candidate)])
            least = min(b / c for b, c in row.pairs)
            assert json.loads(answer["content"])["ok"] is (least > decision.THRESHOLD), row
            short += 1
    assert short > 10
