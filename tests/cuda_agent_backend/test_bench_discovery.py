"""Which files are tasks, and what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent_backend.bench.discovery import (
    Found,
    NoSuchPath,
    TaskFile,
    discover,
    natural,
    why_no_task,
)

TASK = """
import torch
from torch import nn
class Model(nn.Module): ...
def get_inputs(): return []
def get_init_inputs(): return []
"""


def write(path: Path, text: str = TASK) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(*paths: Path) -> list[tuple[str, str]]:
    found = discover(paths)
    assert isinstance(found, Found)
    return [(task.name, task.group) for task in found.tasks]


def test_a_name_is_the_path_in_the_given_folder_and_a_group_the_folder_of_the_file(
    tmp_path: Path,
) -> None:
    for name in ("10_a", "2_b"):
        write(tmp_path / "level1" / f"{name}.py")
    write(tmp_path / "level2" / "1_c.py")
    assert names(tmp_path) == [
        ("level1/2_b", "level1"),
        ("level1/10_a", "level1"),
        ("level2/1_c", "level2"),
    ]
    assert names(tmp_path / "level1") == [("2_b", "level1"), ("10_a", "level1")]
    assert names(tmp_path / "level2" / "1_c.py") == [("1_c", "level2")]


def test_a_file_that_was_given_twice_is_one_task(tmp_path: Path) -> None:
    file = write(tmp_path / "one" / "a.py")
    assert names(tmp_path, file, tmp_path / "one") == [("one/a", "one")]


def test_names_that_occur_twice_begin_with_the_given_folder(tmp_path: Path) -> None:
    for folder in ("one", "two", "deep/two"):
        write(tmp_path / folder / "a.py")
    write(tmp_path / "one" / "b.py")
    found = names(tmp_path / "one", tmp_path / "two", tmp_path / "deep/two")
    assert [name for name, _ in found] == ["b", "one/a", "two/a", "two/a-2"]


@given(st.integers(0, 9), st.integers(1, 12))
def test_parts_are_the_whole_and_share_nothing(count: int, parts: int) -> None:
    whole = Found(tuple(TaskFile(str(i), "", Path(str(i))) for i in range(count)), ())
    found = [whole.part(number, parts).tasks for number in range(1, parts + 1)]
    assert sorted(t.name for p in found for t in p) == [t.name for t in whole.tasks]
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    for place in (".hidden/a.py", "__pycache__/a.py", "__init__.py", "b.txt", "c.py"):
        write(tmp_path / place)
    assert [name for name, _ in names(tmp_path)] == ["c"]


def test_what_is_no_task_is_refused_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path / "good.py")
    write(tmp_path / "helper.py", "class Model: ...\nraise SystemExit('this must not be run')")
    write(tmp_path / "broken.py", "def (")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    found = discover([tmp_path])
    assert isinstance(found, Found)
    assert [task.name for task in found.tasks] == ["good"]
    reasons = {file.name: file.reason for file in found.refused}
    assert reasons["helper"] == "it has no get_inputs, no get_init_inputs"
    assert "SyntaxError" in reasons["broken"]
    assert "cannot be read" in reasons["binary"]


@pytest.mark.parametrize(
    "text",
    [
        "from other import Model, get_inputs\nget_init_inputs = lambda: []",
        "if True:\n  class Model: ...\nelse:\n  Model = 1\ntry:\n  def get_inputs(): ...\nfinally: ...\n"
        "get_init_inputs: object = list",
    ],
)
def test_names_count_however_they_are_bound(tmp_path: Path, text: str) -> None:
    assert why_no_task(write(tmp_path / "task.py", text)) == ""


def test_a_path_that_leads_nowhere_is_an_answer(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", write(tmp_path / "task.txt")):
        found = discover([path])
        assert isinstance(found, NoSuchPath) and str(path) in found.reason


def test_numbers_sort_as_numbers() -> None:
    assert sorted(["a10", "a9", "b1", "a"], key=natural) == ["a", "a9", "a10", "b1"]
