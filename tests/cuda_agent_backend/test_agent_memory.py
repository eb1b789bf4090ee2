"""Memory of neighbours: a distance with the properties of one, and nothing told that cannot be trusted."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_agent_backend.agent import loop
from cuda_agent_backend.agent.loop import EpisodeResult
from cuda_agent_backend.agent.memory.offer import MOST_SOURCE, MOST_TASK, adapt, offers, summary
from cuda_agent_backend.agent.memory.recall import MOST, Memory, Neighbour, entry_of, recall
from cuda_agent_backend.agent.memory.task_distance import (
    TaskFeatures,
    distance,
    features_of,
    structure_digest,
)
from cuda_agent_backend.agent.protocol import ToolCall
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.codegen.api import Candidate, analyse, generate, schedules
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.runtime.machine import key_of
from cuda_agent_backend.search.episode import run_agent
from cuda_agent_backend.search.setup import Setup
from kernel_cache import KernelCache, KernelKey, Record
from kernel_cache.canonical import Json, sha256
from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import InputRef, Node, NodeRef, Task
from sandbox.verdict import Baselines

UNARY = ("relu", "exp", "neg", "tanh", "abs", "sigmoid")


def chain(
    ops: list[str], shape: tuple[int, ...], dtype: str = "float32", target: str = "cpu"
) -> Task:
    """Pointwise operators one after another."""
    spec = TensorSpec(dtype, shape, contiguous_stride(shape))
    refs = [InputRef(0), *(NodeRef(n) for n in range(len(ops)))]
    nodes = tuple(
        Node(f"aten.{op}.default", {"self": ref}) for op, ref in zip(ops, refs, strict=False)
    )
    return Task(target, (spec,), nodes, (refs[-1],), (spec,))


def pair(shapes: tuple[tuple[int, ...], tuple[int, ...]], swapped: bool) -> Task:
    """A sum of two inputs, which come in either order."""
    specs = [TensorSpec("float32", s, contiguous_stride(s)) for s in shapes]
    out = max(specs, key=lambda spec: spec.numel)
    first, second = InputRef(int(swapped)), InputRef(int(not swapped))
    inputs = tuple(specs[::-1] if swapped else specs)
    return Task(
        "cpu",
        inputs,
        (Node("aten.add.Tensor", {"self": first, "other": second}),),
        (NodeRef(0),),
        (out,),
    )


tasks = st.builds(
    chain,
    st.lists(st.sampled_from(UNARY), min_size=1, max_size=5),
    st.lists(st.integers(1, 180), min_size=1, max_size=4).map(tuple),
    st.sampled_from(("float32", "float16", "int32")),
    st.sampled_from(("cpu", "cuda")),
)


@given(tasks, tasks)
def test_the_distance_is_symmetric(one: Task, other: Task) -> None:
    assert distance(features_of(one), features_of(other)) == distance(
        features_of(other), features_of(one)
    )


@given(tasks)
def test_the_distance_to_an_equal_task_is_zero(task: Task) -> None:
    assert distance(features_of(task), features_of(Task.from_json(task.to_json()))) == 0.0


@given(tasks, tasks)
def test_only_what_looks_the_same_is_at_no_distance(one: Task, other: Task) -> None:
    same = features_of(one) == features_of(other)
    assert (distance(features_of(one), features_of(other)) == 0.0) is same


@given(st.integers(1, 512), st.integers(1, 512))
def test_the_order_of_inputs_is_of_no_account(rows: int, columns: int) -> None:
    shapes = ((rows, columns), (columns,))
    one, other = pair(shapes, False), pair(shapes, True)
    assert structure_digest(one) == structure_digest(other)
    assert distance(features_of(one), features_of(other)) == 0.0


@given(tasks)
def test_what_the_index_keeps_comes_back_as_it_was(task: Task) -> None:
    near = features_of(task)
    assert TaskFeatures.from_json(json.loads(json.dumps(near.to_json()))) == near


def test_nearer_sizes_are_nearer_and_other_operators_are_farther_than_any_size() -> None:
    mine = features_of(chain(["exp", "neg"], (1024, 64)))
    near, far = (features_of(chain(["exp", "neg"], (n, 64))) for n in (2048, 65536))
    other = features_of(chain(["exp", "tanh"], (1024, 64)))
    half = features_of(chain(["exp", "neg"], (1024, 64), "float16"))
    assert 0 < distance(mine, near) < distance(mine, far) < 1 < distance(mine, other)
    assert distance(mine, half) == 1.0
    assert distance(mine, features_of(chain(["exp", "neg"], (1024, 64), target="cuda"))) == float(
        "inf"
    )


# --- records ---------------------------------------------------------------------------------------------------------

FLAGS: dict[str, str | bool | int] = {"float32": "ieee"}


def key_for(
    task: Task,
    arch: str = "here",
    flags: dict[str, str | bool | int] = FLAGS,
    deterministic: bool = False,
) -> KernelKey:
    return KernelKey.of(task.digest, task.target, arch, flags, deterministic)


def record(task: Task, speedup: float = 2.0, **changes: Any) -> Record:
    found = analyse(task)
    assert isinstance(found, Analysis)
    evidence: dict[str, Json] = {
        "verifier": "1", "toolchain": "g++", "driver": None, "policy": "search", "samples": {}, "errors": {},
        "speedup": {"median": speedup, "low": speedup, "high": speedup},
    }  # fmt: skip
    made = Record(
        key=key_for(task),
        task=task.to_json(),
        language="c++",
        origin="sketch",
        label=schedules(found)[0].to_json(),
        source="// code",
        plan='{"version":1}',
        binary_digest=sha256(b"code"),
        evidence=evidence,
        created=1000.0,
    )
    return replace(made, **changes)


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    opened = KernelCache.open(tmp_path / "kernels")
    assert isinstance(opened, KernelCache)
    return opened


MINE = chain(["exp", "neg"], (1000, 64))


def test_the_nearest_come_first_and_not_more_than_asked_for(cache: KernelCache) -> None:
    for rows in (100000, 1100, 4000, 9, 30000):
        cache.put(record(chain(["exp", "neg"], (rows, 64))), b"code")
    found = Memory(cache).neighbours(MINE, key_for(MINE))
    assert [n.task.inputs[0].shape[0] for n in found] == [1100, 4000, 30000] and len(found) == MOST
    assert found[0].speedup == 2.0


def test_tasks_with_few_operators_in_common_are_no_neighbours(cache: KernelCache) -> None:
    cache.put(record(chain(["tanh", "abs", "neg"], (1000, 64))), b"code")
    assert Memory(cache).neighbours(MINE, key_for(MINE)) == []


@pytest.mark.parametrize(
    "other", [{"arch": "there"}, {"flags": {"float32": "tf32"}}, {"deterministic": True}]
)
def test_other_machines_and_flags_have_a_memory_of_their_own(
    cache: KernelCache, other: dict[str, Any]
) -> None:
    task = chain(["exp", "neg"], (1100, 64))
    cache.put(record(task, key=key_for(task, **other)), b"code")
    assert Memory(cache).neighbours(MINE, key_for(MINE)) == []
    assert len(Memory(cache).neighbours(MINE, key_for(MINE, **other))) == 1


def test_a_damaged_record_is_left_out(cache: KernelCache) -> None:
    cache.put(record(chain(["exp", "neg"], (1100, 64))), b"code")
    cache.put(record(chain(["exp", "neg"], (4000, 64))), b"code")
    memory = Memory(cache)
    nearest = memory.neighbours(MINE, key_for(MINE))[0].record
    rows = cache.rows()
    assert isinstance(rows, dict)
    digest = rows[nearest.key.digest]
    file = cache.path / "records" / digest[:2] / f"{digest[2:]}.json"
    file.write_bytes(file.read_bytes().replace(b"code", b"evil"))
    assert [n.task.inputs[0].shape[0] for n in memory.neighbours(MINE, key_for(MINE))] == [4000]


def test_a_removed_record_is_forgotten(cache: KernelCache) -> None:
    task = chain(["exp", "neg"], (1100, 64))
    cache.put(record(task), b"code")
    memory = Memory(cache)
    assert len(memory.neighbours(MINE, key_for(MINE))) == 1
    cache.remove(key_for(task))
    assert memory.neighbours(MINE, key_for(MINE)) == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"version": 1}', '{"version": 1, "records": {"a": 3}}', "[" * 100000]
)
def test_a_damaged_index_is_made_anew(cache: KernelCache, text: str) -> None:
    cache.put(record(chain(["exp", "neg"], (1100, 64))), b"code")
    memory = Memory(cache)
    memory.path.write_text(text)
    assert len(memory.neighbours(MINE, key_for(MINE))) == 1
    assert json.loads(memory.path.read_text())["version"] == 1


def test_an_index_that_lies_leads_to_nothing_that_is_not_so(cache: KernelCache) -> None:
    task = chain(["exp", "neg"], (1100, 64))
    cache.put(record(task, key=key_for(task, arch="there")), b"code")
    memory = Memory(cache)
    assert memory.neighbours(MINE, key_for(MINE)) == []
    memory.path.write_text(memory.path.read_text().replace("there", "here"))
    assert memory.neighbours(MINE, key_for(MINE)) == []


def test_records_are_read_once(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in range(1100, 1130):
        cache.put(record(chain(["exp", "neg"], (rows, 64))), b"code")
    Memory(cache).neighbours(MINE, key_for(MINE))
    peeked: list[str] = []
    peek = cache.peek
    monkeypatch.setattr(cache, "peek", lambda digest: (peeked.append(digest), peek(digest))[1])
    assert len(Memory(cache).neighbours(MINE, key_for(MINE))) == MOST
    assert len(peeked) <= 3 * MOST


def test_a_folder_that_cannot_be_read_has_no_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert recall(tmp_path / "file", MINE, key_for(MINE)) == []


# --- what a policy is told -------------------------------------------------------------------------------------------


class Bench:
    def baselines(self, task: Task) -> Baselines:
        return Baselines(3e-5, 2e-5, 1e-6, 1e-5)


def neighbour(task: Task, **changes: Any) -> Neighbour:
    return Neighbour(0.25, task, 2.0, record(task, **changes))


def looked(task: Task, *neighbours: Neighbour) -> list[dict[str, Any]]:
    tools = Toolbox(task, Bench(), neighbours=neighbours)  # type: ignore[arg-type]
    (message,) = tools.run([ToolCall.of("1", "look")])
    found: list[dict[str, Any]] = json.loads(message["content"])["neighbours"]
    return found


def test_look_tells_of_neighbours_with_a_schedule_that_fits() -> None:
    (told,) = looked(MINE, neighbour(chain(["exp", "neg"], (4000, 64))))
    assert told.keys() == {"distance", "task", "speedup", "schedule", "adapted"}
    analysis = analyse(MINE)
    assert isinstance(analysis, Analysis)
    made = generate(analysis, Schedule.from_json(json.dumps(told["schedule"])))
    assert isinstance(made, Candidate)


def test_source_is_told_as_such_and_cut() -> None:
    long = neighbour(MINE, origin="policy", source="x" * 100_000)
    (told,) = looked(MINE, long)
    assert told["language"] == "c++" and "schedule" not in told
    assert len(told["source"]) <= MOST_SOURCE and "100000 characters" in told["source"]


@pytest.mark.parametrize(
    "label", ["", "rows", "[3]", '[{"unroll": -1}]', "[" * 3000, '[{"a": 1}]' * 2000]
)
def test_a_schedule_that_cannot_be_read_or_fitted_is_left_out(label: str) -> None:
    assert looked(MINE, neighbour(MINE, label=label)) == []


def test_without_neighbours_look_tells_of_none() -> None:
    assert looked(MINE) == []


def test_a_schedule_takes_as_much_of_a_neighbours_as_fits() -> None:
    proposals = [Schedule.of({"a": 1, "b": 1, "c": 1}), Schedule.of({"a": 2, "b": 1, "c": 1})]
    theirs = Schedule.of({"a": 4, "b": 8, "c": 2})
    fitted = adapt(theirs, proposals, lambda s: int(s.parameters(0)["b"]) <= 4)
    assert fitted == Schedule.of({"a": 4, "b": 1, "c": 2})
    assert adapt(theirs, proposals, lambda s: True) == theirs
    assert adapt(theirs, proposals, lambda s: False) is None
    assert adapt(Schedule.of({"z": 1}), proposals, lambda s: "a" in dict(s.kernels[0])) is None


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_a_summary_is_short(seed: int) -> None:
    ops = random.Random(seed).choices(UNARY, k=500)
    assert len(summary(chain(ops, (3, 5)))) <= MOST_TASK


def test_offers_are_bounded() -> None:
    many = [neighbour(MINE, origin="policy", source="y" * 50_000) for _ in range(MOST)]
    assert len(json.dumps(offers(many, (), lambda s: False))) < MOST * (
        MOST_SOURCE + MOST_TASK + 1000
    )


@pytest.mark.parametrize("wanted", [True, False])
def test_the_option_switches_the_memory(
    wanted: bool, cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = chain(["exp", "neg"], (1100, 64))
    cache.put(record(known, key=key_of(known)), b"code")
    seen: list[int] = []

    class Judged(Bench):
        waited_s = 0.0

    def episode(policy: Any, tools: Toolbox, *_: Any, **__: Any) -> EpisodeResult:
        seen.append(len(tools.neighbours))
        return EpisodeResult(None, "nothing")

    monkeypatch.setattr(loop, "run_episode", episode)
    setup = Setup(cache.path, tmp_path / "native", {}, memory=wanted)
    run_agent(MINE, Judged(), setup, 1.0, None, lambda _: None)
    assert seen == [int(wanted)]


def test_thousands_of_records_are_looked_through_without_reading_them(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_of("0" * 64, "", record(chain(["exp", "neg"], (1100, 64))))
    assert entry is not None
    many = {f"{n:064x}": replace(entry, key_digest=f"{n:064x}", record="r") for n in range(3000)}
    memory = Memory(cache)
    memory._save(many)
    monkeypatch.setattr(cache, "rows", lambda: dict.fromkeys(many, "r"))
    peeked: list[str] = []
    monkeypatch.setattr(cache, "peek", lambda digest: peeked.append(digest))
    assert memory.neighbours(MINE, key_for(MINE)) == []
    assert len(peeked) == 3 * MOST
