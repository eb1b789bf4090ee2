"""Trajectory files: what is written is read again, what a kill tears is told from damage."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import episode_kit as kit
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent_backend.agent.loop import Budget, EpisodeResult, run_episode
from cuda_agent_backend.agent.protocol import Stopped, ToolCall, Turn
from cuda_agent_backend.agent.trajectories.codec import decode, decode_header, encode
from cuda_agent_backend.agent.trajectories.events import Acted, Ended, Trajectory, Unreadable
from cuda_agent_backend.agent.trajectories.file import (
    InUse,
    Recorder,
    assistant_turns,
    free,
    parse,
    read,
)
from cuda_agent_backend.agent.trajectories.store import (
    Limits,
    Summary,
    ended,
    new_path,
    of_task,
    prune,
    summaries,
)


def play(path: Path, steps: list[kit.Step], tools: kit.Tools | None = None) -> EpisodeResult:
    """An episode with its record."""
    with Recorder.create(path, kit.header()) as record:
        policy, made = kit.Script(steps), tools or kit.Tools()
        return run_episode(policy, made, Budget(1e9), record=record)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.jsonl"


def whole(path: Path) -> Trajectory:
    found = read(path)
    assert isinstance(found, Trajectory), found
    return found


def test_a_file_says_all_that_happened(path: Path) -> None:
    tools = kit.Tools()
    result = play(path, kit.winning(), tools)
    found = whole(path)
    assert found.messages == result.trajectory
    assert found.turns == kit.winning()
    assert found.gains.candidates == tools.candidates
    assert found.gains.profiles == tools.profiles
    assert found.gains.baselines == tools.baselines
    for name, verdict in tools.verdicts.items():
        read_again = found.gains.verdicts[name]
        assert (read_again.accuracy, read_again.speed) == (verdict.accuracy, verdict.speed)
        assert read_again.evidence["samples"] == verdict.evidence["samples"]
    end = found.end
    assert end is not None and found.finished
    assert (end.stop, end.reward, end.turns) == ("submitted", 3.0, len(kit.winning()))
    assert end.promoted == kit.name_of(kit.winners(1)[0])
    assert result.stop == "submitted" and result.best is not None


def test_every_line_is_strict_json_and_ascii(path: Path) -> None:
    play(path, kit.winning())
    for line in path.read_bytes().splitlines():
        line.decode("ascii")
        json.loads(line, parse_constant=pytest.fail)


def test_tokens_come_back_as_they_were_sampled(path: Path) -> None:
    play(path, kit.winning())
    turns = assistant_turns(path)
    assert not isinstance(turns, Unreadable)
    assert turns[0].tokens == kit.TOKENS
    assert turns[0].usage is not None and turns[0].usage.cost == 0.001


def test_wherever_a_file_is_torn_its_whole_lines_are_read(path: Path) -> None:
    play(path, kit.winning())
    content = path.read_bytes()
    header = content.index(b"\n") + 1
    cuts = {*range(header, len(content), 97), header, len(content) - 1}
    assert len(cuts) > 100
    for cut in cuts:
        found = parse(content[:cut])
        assert isinstance(found, Trajectory)
        assert len(found.events) == content[header:cut].count(b"\n")
        assert found.torn == cut - (content[:cut].rindex(b"\n") + 1)


def test_a_torn_header_says_so_and_no_more() -> None:
    found = parse(b'{"kind": "header", "ver')
    assert isinstance(found, Unreadable) and "no header" in found.reason


@pytest.mark.parametrize(
    ("damage", "line", "said"),
    [
        (lambda lines: [*lines[:3], b"{broken", *lines[3:]], 4, "not JSON"),
        (lambda lines: [*lines[:3], b"\0" * 50, *lines[3:]], 4, "not JSON"),
        (lambda lines: [*lines[:2], b"", *lines[2:]], 3, "not JSON"),
        (lambda lines: [*lines[:2], b"[]", *lines[2:]], 3, "not a JSON object"),
        (lambda lines: [*lines[:2], b'{"kind": "dreamt"}', *lines[2:]], 3, "no event"),
        (lambda lines: [*lines[:2], b'{"kind": "said"}', *lines[2:]], 3, "message"),
        (lambda lines: [lines[0], *lines[2:], b"[" * 99999], 0, "not JSON"),
        (lambda lines: [b"{}", *lines[1:]], 1, "not the header"),
        (lambda lines: [x.replace(b"// kernel", b"// Kernel") for x in lines], 0, "digest"),
    ],
)
def test_damage_is_said_with_its_line_and_the_file_is_left(
    path: Path, damage: Callable[[list[bytes]], list[bytes]], line: int, said: str
) -> None:
    play(path, kit.winning())
    path.write_bytes(b"\n".join(damage(path.read_bytes().splitlines())) + b"\n")
    before = path.read_bytes()
    found = read(path)
    assert isinstance(found, Unreadable)
    assert said in str(found)
    assert found.line == line or not line
    assert str(found).startswith(f"line {found.line}: ")
    assert isinstance(Recorder.reopen(path), Unreadable)
    assert path.read_bytes() == before


def test_a_later_version_is_refused_with_the_reason(path: Path) -> None:
    play(path, kit.winning())
    path.write_bytes(path.read_bytes().replace(b'"version": 1', b'"version": 2', 1))
    found = read(path)
    assert isinstance(found, Unreadable)
    assert "version 2" in found.reason and "up to 1" in found.reason
    assert "release" in found.remedy


def test_a_file_that_is_no_trajectory_is_refused(path: Path) -> None:
    assert isinstance(read(path), Unreadable)
    path.write_bytes(os.urandom(300))
    assert isinstance(read(path), Unreadable)
    path.write_text('{"role": "user", "content": "an older format"}\n')
    assert isinstance(read(path), Unreadable)


def test_one_writer_at_a_time(path: Path) -> None:
    with Recorder.create(path, kit.header()):
        assert isinstance(Recorder.reopen(path), InUse)
        assert not free(path)
        with pytest.raises(FileExistsError):
            Recorder.create(path, kit.header())
    assert free(path)
    again = Recorder.reopen(path)
    assert isinstance(again, tuple)
    again[0].close()


def test_what_is_written_after_closing_is_dropped(path: Path) -> None:
    record = Recorder.create(path, kit.header())
    record.close()
    before = path.read_bytes()
    record.write(Ended("time", "late", 0, 0.0, None))
    assert path.read_bytes() == before


def test_a_full_disk_ends_the_record_and_not_the_episode(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.write, [3000]

    def write(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        done = real(descriptor, data[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(os, "write", write)
    record = Recorder.create(path, kit.header())
    result = run_episode(kit.Script(kit.winning()), kit.Tools(), Budget(1e9), record=record)  # type: ignore[arg-type]
    record.close()
    assert result.best is not None
    assert "No space left" in record.trouble
    monkeypatch.undo()
    found = whole(path)
    assert 0 < len(found.events) < 10 and found.torn > 0
    assert not found.finished


TEXTS = st.text(st.characters(), max_size=50)
TURNS = st.builds(
    Turn,
    TEXTS,
    st.lists(st.builds(ToolCall, TEXTS, TEXTS, TEXTS), max_size=3).map(tuple),
    st.booleans(),
)


@given(TURNS, st.floats(0, 1e9), st.floats(0, 1e9))
def test_any_turn_is_one_line_and_comes_back(turn: Turn, used: float, seconds: float) -> None:
    line = encode(Acted(turn, used, seconds))
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert decode(line[:-1]) == Acted(turn, used, seconds)


@given(st.binary(max_size=200))
def test_random_bytes_never_raise(content: bytes) -> None:
    first = encode(kit.header())
    assert isinstance(parse(content + b"\n"), Unreadable)
    assert isinstance(parse(first + content + b"\n"), Unreadable)


def test_numbers_that_are_not_finite_come_back() -> None:
    made = kit.candidate(kit.source(1))
    verdict = kit.verdict(made)
    assert verdict.accuracy is not None
    assert math.isinf(verdict.accuracy.outputs[0].max_allowed)


def test_a_budget_without_end_comes_back() -> None:
    assert decode_header(encode(kit.header(budget_s=math.inf))).budget_s == math.inf


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("started", "x"),
        ("started", math.inf),
        ("started", 1e300),
        ("budget_s", "x"),
        ("budget_s", True),
        ("turns", 1.5),
        ("machine", []),
        ("flags", None),
        ("policy", 3),
        ("task_digest", None),
    ],
)
def test_a_field_of_the_header_that_is_none_is_named(field: str, value: Any) -> None:
    found = parse(encode(kit.header(**{field: value})))
    assert isinstance(found, Unreadable) and found.line == 1
    assert field in found.reason


def files(folder: Path, count: int) -> list[Path]:
    """Finished files of growing age."""
    made = []
    for number in range(count):
        path = new_path(folder, kit.header())
        play(path, kit.winning())
        os.utime(path, (1e9 - number, 1e9 - number))
        made.append(path)
    return made


def test_the_oldest_finished_files_go_first(tmp_path: Path) -> None:
    made = files(tmp_path, 5)
    assert prune(tmp_path, Limits(files=3), now=1e9) == 2
    assert [path.exists() for path in made] == [True] * 3 + [False] * 2
    size = made[0].stat().st_size
    assert prune(tmp_path, Limits(size=2 * size + size // 2), now=1e9) == 1
    assert [path.exists() for path in made] == [True] * 2 + [False] * 3


def test_unfinished_files_stay_a_month_and_those_in_use_always(tmp_path: Path) -> None:
    path = new_path(tmp_path, kit.header())
    play(path, [*kit.winning()[:4], Stopped("infrastructure", "the server is gone")])
    assert not ended(path) and of_task(tmp_path, kit.TASK.digest) == [path]
    os.utime(path, (1e9, 1e9))
    nothing, month = Limits(files=0, size=0), 30 * 86400.0
    assert prune(tmp_path, nothing, now=1e9 + month - 1) == 0
    reopened = Recorder.reopen(path)
    assert isinstance(reopened, tuple)
    assert prune(tmp_path, nothing, now=1e9 + month + 1) == 0
    reopened[0].close()
    assert prune(tmp_path, nothing, now=1e9 + month + 1) == 1


def test_a_list_says_how_each_ended_without_reading_all_of_it(tmp_path: Path) -> None:
    finished, *_ = files(tmp_path, 1)
    (tmp_path / "junk.jsonl").write_text("junk\n")
    found = dict(summaries(tmp_path))
    summary = found[finished]
    assert isinstance(summary, Summary) and summary.finished
    assert summary.end is not None and summary.end.stop == "submitted"
    assert isinstance(found[tmp_path / "junk.jsonl"], Unreadable)


def test_what_differs_in_nothing_that_matters_continues() -> None:
    one = kit.header()
    assert one.continues(kit.header(started=1.0, machine={"cpu": "a", "load": [9.0]}, budget_s=5.0))
    for name, value in asdict(one).items():
        if name in ("task", "started", "budget_s", "turns"):
            continue
        other = {"cpu": "b"} if isinstance(value, dict) else f"{value}x"
        assert not one.continues(replace(one, **{name: other})), name
