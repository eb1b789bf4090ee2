"""Tables measured for real, and an environment that answers from one as the judge's does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from world_kit import row_norm

from cuda_agent_backend.agent.environment import open_environment
from cuda_agent_backend.agent.protocol import Message, ToolCall, Turn
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from sandbox.failures import CompileFailed
from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings
from sandbox.judge.survey import Found, Surveyed, SurveyEffort
from sandbox.task.task import Task
from sandbox.verdict import Baselines
from trainer.synthesis.compose.rules import RuleComposer
from trainer.synthesis.compose.task import Composed, Wishes
from trainer.world.ahead import Deadline
from trainer.world.files import part, read
from trainer.world.measure import Here, MeasureSettings, Progress, Run
from trainer.world.replay_tools import replay_environment
from trainer.world.rows import Table, table_id
from trainer.world.sources import Region, Source

PER_TASK = 3


TASK = row_norm(64, 320)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, native_dir: Path) -> Iterator[Judge]:
    settings = JudgeSettings(
        "cpu",
        scratch_dir=tmp_path_factory.mktemp("judge"),
        native_dir=native_dir,
        inductor={"cpp_cache_precompile_headers": False},
    )
    with Judge(settings) as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


def measured(judge: Judge, folder: Path) -> Progress:
    effort = SurveyEffort(rounds=2, close=((1.5, 3),), leaders=2, again=8)
    settings = MeasureSettings(folder, "cpu", "x86", PER_TASK, 2, effort=effort)
    other = row_norm(64, 320)
    regions = [Region("first", TASK.to_json(), ("norms",)), Region("same", other.to_json())]
    return Run(settings, judge, Here.of("cpu")).measure([*regions, Region("bad", "{}")])


@pytest.fixture(scope="module")
def table(judge: Judge, folder: Path) -> Table:
    progress = measured(judge, folder)
    assert (progress.tables, progress.known) == (1, 1)
    assert progress.skipped == {"not a task": 1}
    (found,) = read([folder])
    return found


def test_a_table_tells_where_it_is_from_and_what_was_measured(table: Table) -> None:
    assert table.parsed == TASK and table.source == "first" and table.families == ("norms",)
    assert table.id == table_id(TASK.digest, "x86", table.device_name)
    assert table.family == "sum" and table.dtype == "float32" and table.target == "cpu"
    assert len(table.rows) == PER_TASK <= table.legal <= table.space
    assert all(row.works for row in table.rows) and table.best > 0
    assert min(table.eager_s, table.inductor_s, table.floor_s) > 0
    assert any(row.retimed for row in table.rows)
    assert table.rows[0].schedules[0] == table.proposals[0] and table.rows[0].rank == 0
    assert all(row.compile_s > 0 and row.check_s > 0 and row.time_s > 0 for row in table.rows)


def test_a_run_goes_on_without_measuring_anything_twice(
    judge: Judge, folder: Path, table: Table
) -> None:
    before = part(folder, table.id).read_bytes()
    progress = measured(judge, folder)
    assert (progress.tables, progress.known) == (0, 2)
    assert part(folder, table.id).read_bytes() == before


def test_a_run_does_not_measure_what_another_file_has(
    judge: Judge, tmp_path: Path, table: Table
) -> None:
    settings = MeasureSettings(tmp_path, "cpu", "x86", PER_TASK, known=frozenset({table.id}))
    progress = Run(settings, judge, Here.of("cpu")).measure([Region("first", TASK.to_json())])
    assert (progress.tables, progress.known) == (0, 1) and not (tmp_path / "tables").exists()


class Checking:
    """A bench that checks whatever it times: which candidates a profile checks depends on their times."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bench, name)

    def profile(self, task: Task, candidate: Any, *, worth: float) -> Any:
        return self.bench.profile(task, candidate, worth=0.0)


def episode(tools: Toolbox, table: Table) -> list[Message]:
    """A look, candidates good and bad, and every question that may be asked of them."""
    proposals = [json.loads(text) for text in table.proposals]
    first = table.rows[0].candidate
    odd = [{**proposals[0][0], "team": 7, "unheard": 1}]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("look", {}),
        ("sketch", {"schedule": proposals[0]}),
        ("sketch", {"schedule": "none"}),
        ("profile", {"candidate": "unknown"}),
        ("verify", {"candidate": first}),
        ("profile", {"candidate": first}),
        ("inspect", {"candidate": first}),
        ("sketch", {"schedule": odd}),
        ("submit", {"reason": "enough"}),
        ("look", {}),
    ]
    messages: list[Message] = []
    for number, (name, arguments) in enumerate(calls):
        call = ToolCall.of(f"call_{number}", name, **arguments)
        messages += [Turn("", (call,)).to_message(), *tools.run([call])]
    return messages


def plain(messages: list[Message]) -> list[Any]:
    """Messages without what a clock said, and without the words that follow from it."""
    found: list[Any] = []
    for message in messages:
        content = json.loads(message["content"]) if message["role"] == "tool" else ""
        found.append({**message, "content": _masked(content)})
    return found


def _masked(value: Any) -> Any:
    match value:
        case bool() | int():
            return value
        case float():
            return "number"
        case str():
            return re.sub(r"\d+\.\d+", "number", value)
        case list():
            return [_masked(one) for one in value]
        case dict():
            return {k: "words" if k == "binds" else _masked(v) for k, v in value.items()}
    return value


def test_an_episode_has_the_same_messages_from_the_table_as_from_the_judge(
    judge: Judge, table: Table
) -> None:
    with open_environment(TASK, judge, None) as real, replay_environment(table) as replayed:
        assert real.first_messages() == replayed.first_messages()
        assert real.tools.schemas == replayed.tools.schemas
        for environment in (real, replayed):
            environment.tools.bench = Checking(environment.tools.bench)
        mine = plain(episode(real.tools, table))
        theirs = plain(episode(replayed.tools, table))
    inspections = [[m for m in all_ if m.get("name") == "inspect"] for all_ in (mine, theirs)]
    for (inspection,) in inspections:  # a table has no instructions
        inspection["content"].pop("instructions")
        inspection["content"].pop("why_no_instructions", None)
    refusals = [[m for m in all_ if m.get("tool_call_id") == "call_7"] for all_ in (mine, theirs)]
    for (refusal,) in refusals:  # not in the table: the words differ
        assert refusal["content"]["ok"] is False
        refusal["content"].pop("error")
    assert mine == theirs
    statuses = [m["content"].get("status") for m in mine if m.get("name") in ("verify", "profile")]
    assert statuses == [None, "correct", "correct"]


@pytest.mark.gpu
def test_a_table_of_a_gpu_tells_registers_and_occupancy(tmp_path: Path, native_dir: Path) -> None:
    from cuda_agent_backend.runtime.machine import arch_of

    task, arch = row_norm(4096, 2048, "cuda"), arch_of("cuda")
    judging = JudgeSettings("cuda", scratch_dir=tmp_path / "j", native_dir=native_dir, arch=arch)
    settings = MeasureSettings(tmp_path / "run", "cuda", arch, 8, 4)
    with Judge(judging) as judge:
        progress = Run(settings, judge, Here.of("cuda")).measure([Region("gpu", task.to_json())])
    assert progress.tables == 1
    (found,) = read([tmp_path / "run"])
    working = [row for row in found.rows if row.works]
    assert len(working) >= 4 and found.best > 0
    assert all(row.registers and row.occupancy and row.kernels for row in working)
    assert any(row.retimed for row in working)


def test_when_the_time_is_up_no_further_table_is_begun(judge: Judge, tmp_path: Path) -> None:
    effort = SurveyEffort(rounds=2, close=(), leaders=0, again=0)
    settings = MeasureSettings(tmp_path, "cpu", "x86", 2, 2, effort=effort, deadline=Deadline(0.0))
    regions = [Region(f"{n}", row_norm(n, 96).to_json()) for n in (16, 32)]
    progress = Run(settings, judge, Here.of("cpu")).measure(regions)
    assert progress.tables == 1 and [t.source for t in read([tmp_path])] == ["16"]


def test_when_the_time_is_up_no_region_is_passed_over_for_a_further_one(
    judge: Judge, tmp_path: Path
) -> None:
    effort = SurveyEffort(rounds=2, close=(), leaders=0, again=0)
    settings = MeasureSettings(tmp_path, "cpu", "x86", 2, 2, effort=effort, deadline=Deadline(0.0))
    regions = [Region(f"bad {n}", "{}") for n in range(3)] + [Region("16", TASK.to_json())]
    progress = Run(settings, judge, Here.of("cpu")).measure(regions)
    assert progress.tables == 0 and progress.skipped == {"not a task": 1}


class Odd:
    """A judge whose surveys are not what they should be."""

    def __init__(self, judge: Judge, survey: Callable[..., Any]) -> None:
        self.judge, self.survey = judge, survey

    def __getattr__(self, name: str) -> Any:
        return getattr(self.judge, name)


def odd_run(judge: Judge, folder: Path, survey: Callable[..., Any]) -> Progress:
    settings = MeasureSettings(folder, "cpu", "x86", PER_TASK, 2)
    odd: Any = Odd(judge, survey)
    return Run(settings, odd, Here.of("cpu")).measure([Region("one", TASK.to_json())])


def test_a_table_in_which_nothing_works_is_not_kept(judge: Judge, tmp_path: Path) -> None:
    """As where no kernel can be loaded on a machine."""

    def survey(task: Task, candidates: Sequence[Any], effort: Any, built: Any) -> Surveyed:
        baselines = Baselines(1.0, 1.0, 0.0, 0.0)
        found = [Found(CompileFailed("no launcher")) for _ in candidates]
        return Surveyed(baselines, "eager", found, {})

    progress = odd_run(judge, tmp_path, survey)
    assert progress.tables == 0 and progress.skipped == {"too little could be measured": 1}
    assert not part(tmp_path, table_id(TASK.digest, "x86", Here.of("cpu").device_name)).exists()
    assert not (tmp_path / "skipped.jsonl").exists()


def test_a_fault_of_ours_costs_its_region_only(judge: Judge, tmp_path: Path) -> None:
    def survey(*_: Any) -> Surveyed:
        raise ZeroDivisionError

    progress = odd_run(judge, tmp_path, survey)
    assert progress.tables == 0 and progress.skipped == {"error of ours": 1}


def test_only_what_our_composer_makes_is_looked_at_beside_others() -> None:
    made = RuleComposer(Wishes.of("cpu")).compose(5, 1)
    assert isinstance(made, Composed)
    claim = ("cpu", 5, 1)
    assert Source("a", made.code, claim=claim).is_ours
    assert not Source("a", made.code + "import os", claim=claim).is_ours
    assert not Source("a", made.code, claim=("cpu", 6, 1)).is_ours
    assert not Source("a", made.code).is_ours
