"""Whatever a policy says, an episode ends well and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.agent_fuzz import fuzz, own_temporary_folder, unanswered
from benchmarks.agent_fuzz_policies import KINDS
from benchmarks.sandbox_candidates import task
from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings

NOTHING = {"threads": 0, "descriptors": 0, "temporary_files": 0}


@pytest.mark.parametrize("kind", list(KINDS))
def test_many_episodes_of_nonsense_end_well(kind: str) -> None:
    fuzz(kind, range(1), None, task("cpu"))  # what is loaded once is loaded
    count = 40 if kind == "huge" else 200  # megabytes in each call
    found = fuzz(kind, range(1, 1 + count), None, task("cpu"))
    assert found["wrong"] == []
    assert found["left_behind"] == NOTHING
    assert found["won"] > 0 and found["nothing_judged"] > 0
    assert found["calls_answered"] > 300


@pytest.mark.slow(120)
@pytest.mark.timeout(1500)
def test_nonsense_against_the_judge_ends_well(tmp_path: Path, native_dir: Path) -> None:
    with Judge(JudgeSettings("cpu", scratch_dir=tmp_path, native_dir=native_dir)) as judge:
        judge.baselines(task("cpu"))
        fuzz("repeats", range(1), judge, task("cpu"))
        for kind in KINDS:
            found = fuzz(kind, range(2), judge, task("cpu"))
            assert found["wrong"] == []
            assert found["left_behind"] == NOTHING


def test_an_answer_that_is_missing_is_seen() -> None:
    call = {"id": "a", "function": {"name": "look", "arguments": "{}"}}
    said = {"role": "assistant", "tool_calls": [call, {**call, "id": "b"}]}
    good = [{"role": "tool", "tool_call_id": i, "content": '{"ok": true}'} for i in ("a", "b")]
    assert unanswered([said, *good]) == []
    assert unanswered([said, good[1], good[0]]) and unanswered([said, good[0]])


def test_a_file_that_is_left_is_seen() -> None:
    import tempfile

    from benchmarks.agent_fuzz import held

    with own_temporary_folder() as folder:
        before = held(folder)
        handle, _ = tempfile.mkstemp()
        assert held(folder).beyond(before) == {**NOTHING, "descriptors": 1, "temporary_files": 1}
        import os

        os.close(handle)
