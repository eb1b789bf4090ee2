"""What the tools say of what the sandbox found; and that whatever is called, an answer comes."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from agent_tasks import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tools import TASK, Built, Scripted, made, run

from cuda_agent_backend.agent.observation import (
    HINTS,
    LOG_CHARACTERS,
    MOST_ERRORS,
    binding,
    compile_errors,
    cut,
    distribution_hint,
    errors_of,
    facts_in_words,
)
from cuda_agent_backend.agent.protocol import ToolCall
from cuda_agent_backend.agent.tools.toolbox import MOST_REASON, Toolbox, tool_schemas
from cuda_agent_backend.agent.workspace.confined_files import MAX_FILE
from cuda_agent_backend.agent.workspace.folder import Workspace
from sandbox.accuracy.inputs import DISTRIBUTIONS
from sandbox.accuracy.misses import Misses, Place
from sandbox.accuracy.report import AccuracyReport, OutputReport
from sandbox.failures import CompileFailed
from sandbox.isolation.head_tail import HeadTail
from sandbox.timing.roofline import Achieved
from sandbox.verdict import Wrong

SOURCE = "first line\nfloat x = y;\nthird\n"
GXX = "kernel.cpp: In function 'void f()':\nkernel.cpp:2:11: error: 'y' was not declared\n    2 | float x = y;\n"
NVCC = 'kernel.cu(2): error: identifier "y" is undefined\n  float x = y;\n            ^\n\n1 error detected\n'
NVCC_NUMBERED = 'kernel.cu(2): error #20: identifier "y" is undefined\n'
FATAL = 'kernel.cu:1:10: fatal error: nothing.h: No such file or directory\n    1 | #include "nothing.h"\n'
HEADER = "/usr/include/thing.h(7): error: expected a ;\n"
PTXAS = "ptxas /tmp/x/tmpxft-6_kernel.ptx, line 21; error   : Not a name of any known instruction: 'bogus'\n"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (GXX, "my/v1.cu:2: 'y' was not declared | float x = y;"),
        (NVCC, 'my/v1.cu:2: identifier "y" is undefined | float x = y;'),
        (NVCC_NUMBERED, 'my/v1.cu:2: identifier "y" is undefined | float x = y;'),
        (FATAL, "my/v1.cu:1: nothing.h: No such file or directory | first line"),
        (HEADER, "/usr/include/thing.h:7: expected a ;"),
        (PTXAS, "PTX line 21: Not a name of any known instruction: 'bogus'"),
    ],
)
def test_a_compilers_errors_are_told_by_line_with_what_stands_there(log: str, said: str) -> None:
    assert compile_errors(log, SOURCE, "my/v1.cu") == [said]


def test_errors_are_told_once_and_not_without_end() -> None:
    assert len(compile_errors(NVCC * 50, SOURCE, "k.cu")) == 1
    many = "".join(f"kernel.cu({n}): error: {n}\n" for n in range(1, 90))
    assert len(compile_errors(many, SOURCE, "k.cu")) == MOST_ERRORS
    assert compile_errors("nothing of use", SOURCE, "k.cu") == []


@pytest.mark.parametrize("number", ["9" * 5000, "0", "999999999"])
def test_lines_that_a_log_makes_up_are_no_fault(number: str) -> None:
    for log in (f"kernel.cu({number}): error: no\n", f"kernel.cu:{number}:{number}: error: no\n"):
        for source in ("", SOURCE):
            assert all(" | " not in told for told in compile_errors(log, source, "k.cu"))
    assert compile_errors(f"ptxas k.ptx, line {number}; error : no\n", "", "k.cu")[1:] == []


def test_long_text_keeps_both_ends() -> None:
    assert cut("short") == "short"
    text = cut("a" * 50_000 + "b" * 50_000)
    assert text.startswith("aaa") and text.endswith("bbb")
    assert f"{100_000 - LOG_CHARACTERS} of 100000" in text


@given(
    text=st.integers(0, 3000).map(lambda n: "".join(f"{i}\n" for i in range(n))),
    limits=st.tuples(st.integers(200, 6000), st.integers(200, 6000)).map(sorted),
)
def test_cut_twice_is_as_cut_once(text: str, limits: list[int]) -> None:
    assert cut(cut(text, limits[1]), limits[0]) == cut(text, limits[0])


def test_what_was_left_out_before_is_counted_in_its_unit() -> None:
    output = HeadTail(16_000)
    output.feed(b"begin\n" + b"x" * 1_000_000 + b"\nend")
    told = cut(output.text() + "\n[a note]")
    assert f"[... {1_000_010 + 9 - LOG_CHARACTERS} of {1_000_010 + 9} bytes left out ...]" in told
    assert told.count("left out") == 1 and told.startswith("begin") and told.endswith("[a note]")
    forged = cut("\n[... 7 of 9 bytes left out ...]\n" + "y" * 50_000)
    assert forged.startswith("\n[... 7 of 9 bytes") and "50033 characters left out" in forged


def test_every_distribution_has_a_hint() -> None:
    assert set(HINTS) == set(DISTRIBUTIONS)
    assert distribution_hint("edges inputs") == HINTS["edges"]
    assert distribution_hint("recorded 0 inputs") == ""


def test_facts_that_stand_out_are_put_in_words() -> None:
    fine = {
        "registers": 40,
        "spill_store_bytes": 0,
        "stack_bytes": 0,
        "occupancy": 0.75,
        "blocks_per_sm": 6,
    }
    assert facts_in_words({"k": fine}) == []
    (spills,) = facts_in_words({"k": {**fine, "spill_store_bytes": 8, "spill_load_bytes": 16}})
    assert "spills 24 bytes" in spills
    (few,) = facts_in_words({"k": {**fine, "occupancy": 0.125, "limited_by": "registers"}})
    assert "12%" in few and "limited by registers" in few
    assert any("does not fit" in s for s in facts_in_words({"k": {**fine, "blocks_per_sm": 0}}))


@pytest.mark.parametrize(
    ("memory", "arithmetic", "said"),
    [(0.95, 0.1, "little is left"), (0.7, 0.1, "memory binds"), (0.2, 0.8, "arithmetic binds"), (0.2, 0.1, "latency")],
)  # fmt: skip
def test_what_binds_is_told(memory: float, arithmetic: float, said: str) -> None:
    assert said in binding(Achieved(1e-5, 1, 1.0, memory, 1, 1.0, arithmetic))


def test_a_wrong_output_says_where_and_by_how_much() -> None:
    where = Misses(2, 64, (Place((0, 3), "7", "1.5"),), Place((1, 1), "nan", "2"))
    bad = OutputReport(
        1, False, "RMS error", 64, 1e-3, 1e-7, 2e-7, math.inf, 1e-6, 4e-6, 1e4, where
    )
    (said,) = errors_of(AccuracyReport((OutputReport(0, True), bad)), ["mean", "out"])
    assert (said["output"], said["name"]) == (1, "out")
    assert said["largest_error"] == "infinite" and said["error_ratio"] == 1e4
    assert said["wrong_elements"] == "2 of 64"
    assert said["first_wrong"] == ["[0, 3]: 7 instead of 1.5"]
    assert said["worst"] == "[1, 1]: nan instead of 2"
    json.dumps(said, allow_nan=False)


def test_a_wrong_candidate_is_told_with_its_inputs_and_a_profile_with_its_facts() -> None:
    bench = Scripted(Built({"k": {"registers": 200, "occupancy": 0.1, "limited_by": "registers"}}))
    tools = Toolbox(TASK, bench)
    schedule = run(tools, "look")["schedules"][0]
    answer = run(tools, "sketch", schedule=schedule)
    assert "limited by registers" in answer["remarks"][0]
    profile = run(tools, "profile", candidate=answer["candidate"])
    assert profile["facts"] == answer["facts"]
    assert profile["median_us"] == {"eager": 30.0, "inductor": 20.0, "candidate": 10.0}
    assert "latency" in profile["binds"]
    bad = AccuracyReport((OutputReport(0, False, "1 of 4096 elements differ"),))
    bench.verify = lambda task, candidate: Wrong("offset inputs", bad.reason, bad)  # type: ignore[method-assign]
    wrong = run(tools, "verify", candidate=answer["candidate"])
    assert wrong["inputs"] == HINTS["offset"]
    assert wrong["outputs"][0]["reason"] == "1 of 4096 elements differ"


def test_reasons_that_are_a_page_are_cut() -> None:
    tools = Toolbox(TASK, Scripted(compiled=CompileFailed("error: " + "long " * 10_000)))
    answer = run(tools, "sketch", schedule=run(tools, "look")["schedules"][0])
    assert len(answer["error"]) < MOST_REASON + 100


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "No space left"),
        (MemoryError(), "out of memory"),
        (RecursionError(), "nested too deep"),
    ],
)
def test_what_a_machine_refuses_is_an_answer_and_a_bug_is_not(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise raised

    tools, raised = Toolbox(TASK, Scripted()), error
    monkeypatch.setattr(tools.bench, "baselines", fail)
    answer = run(tools, "look")
    assert not answer["ok"] and said in answer["error"]
    raised = TypeError("a bug")
    with pytest.raises(TypeError):
        run(tools, "look")


@pytest.mark.parametrize("in_the_way", ["folder", "link", "pipe"])
def test_baselines_are_told_where_their_file_has_no_place(tmp_path: Path, in_the_way: str) -> None:
    place = tmp_path / "baselines.json"
    if in_the_way == "folder":
        place.mkdir()
    elif in_the_way == "link":
        place.symlink_to("/etc/passwd")
    else:
        os.mkfifo(place)
    with Workspace(tmp_path) as workspace:
        tools = Toolbox(TASK, Scripted(), workspace=workspace)
        answer = run(tools, "look")
        assert answer["ok"] and answer["schedules"] and tools.baselines is not None
        assert "remove what is in its place" in answer["remarks"][0]
        place.rmdir() if in_the_way == "folder" else place.unlink()
        assert "remarks" not in run(tools, "look") and "room" in place.read_text()


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_a_schedule_says_there_is_an_answer(target: str, data: st.DataObject) -> None:
    """One parameter of a proposed schedule in turn is what it should not be."""
    name = data.draw(st.sampled_from(KINDS))
    tools = Toolbox(samples(target)[name].task, Scripted())
    proposed = run(tools, "look")["schedules"]
    schedule = json.loads(json.dumps(data.draw(st.sampled_from(proposed[:8]))))
    kernel = data.draw(st.sampled_from(schedule))
    parameter = data.draw(st.sampled_from(sorted(kernel)))
    for odd in (0, 1, 3, 1 << 20, 1 << 40, -1, "word", "", 2.0, 0.5, True, None, []):
        kernel[parameter] = odd
        answer = run(tools, "sketch", schedule=schedule)
        assert answer["ok"] or answer["error"], (name, parameter, odd)
    sizes = {digest: len(made.source) for digest, made in tools.candidates.items()}
    assert max(sizes.values(), default=0) < MAX_FILE


KINDS = ("gelu", "softmax", "layer norm", "bfloat16 sum", "transposed", "cumulative sum", "depthwise")  # fmt: skip
NAMES = st.one_of(
    st.sampled_from([s["function"]["name"] for s in tool_schemas()]), st.text(max_size=5)
)
VALUES = st.one_of(
    st.text(max_size=10), st.integers(), st.booleans(), st.none(), st.floats(),
    st.lists(st.dictionaries(st.sampled_from(["team", "old", "new", "sketch"]), st.integers() | st.text(max_size=3))),
    st.sampled_from(["k.cpp", "plan.json", "SKILL.md", "..", "made"]),
)  # fmt: skip
KEYS = sorted({k for s in tool_schemas() for k in s["function"]["parameters"]["properties"]})
ARGUMENTS = st.one_of(
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4).map(json.dumps),
    st.text(max_size=30),
    st.just("[" * 50_000),
)


@settings(max_examples=150)
@given(calls=st.lists(st.tuples(NAMES, ARGUMENTS), max_size=6))
def test_whatever_is_called_every_call_is_answered(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, str]]
) -> None:
    with Workspace(tmp_path_factory.mktemp("w")) as workspace:
        workspace.provide("SKILL.md", "text")
        workspace.provide("plan.json", "{}", protect=False)
        tools = Toolbox(TASK, Scripted(), workspace=workspace)
        name = made(tools)
        wanted = [
            ToolCall(str(i), n, a.replace('"made"', f'"{name}"')) for i, (n, a) in enumerate(calls)
        ]
        messages = tools.run(wanted)
        assert [m["tool_call_id"] for m in messages] == [c.id for c in wanted]
        for message in messages:
            answer: dict[str, Any] = json.loads(message["content"])
            assert answer["ok"] or answer.get("error") or answer.get("reason")
        assert Path(workspace.root / "SKILL.md").read_text() == "text"
