"""No test goes missing unseen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit.names import CHANGED, KNOWN, LONGEST, TESTS, listed, missing, short, written

LONG = "a.py::test_of_much[" + "x" * LONGEST + "]"
NAMES = ["a.py::test_one", "a.py::test_two[1-b::c]", "a.py::test_two[2]", "b/c.py::test_one", LONG]


def changes(files: dict[str, str] | None = None, *tests: tuple[str, str | None]) -> dict[str, Any]:
    return {
        "files": files or {},
        "tests": [{"was": was, "now": now, "why": "moved"} for was, now in tests],
    }


def test_every_test_that_is_listed_is_there(collected: list[str]) -> None:
    changed = json.loads(CHANGED.read_text())
    assert missing(listed(json.loads(KNOWN.read_text())), collected, changed) == []


def test_every_test_that_runs_alone_is_in_a_file_that_has_the_words_of_the_mark(
    collected_alone: list[str],
) -> None:
    """The Makefile looks for them in these files only, as collecting all takes as long as a fifth of them."""
    files = {name.partition("::")[0] for name in collected_alone}
    assert files == {file for file in files if "mark.alone" in (TESTS.parent / file).read_text()}
    assert "mark\\.alone" in (TESTS.parent / "Makefile").read_text() and len(files) > 3

    assert all(entry["why"] for entry in json.loads(CHANGED.read_text())["tests"])


def test_what_is_written_is_listed() -> None:
    kept = json.loads(json.dumps(written(NAMES)))
    assert listed(kept) == {*NAMES[:-1], short(LONG)}
    assert len(short(LONG)) < LONGEST


def test_what_is_gone_without_a_reason_is_missing() -> None:
    kept = listed(written(NAMES))
    assert missing(kept, NAMES, changes()) == []
    assert missing(kept, NAMES[1:], changes()) == [NAMES[0]]
    assert missing(kept, NAMES[:-1], changes()) == [short(LONG)]


@pytest.mark.parametrize(
    ("there", "changed"),
    [
        (["d.py::test_one"], changes({"a.py": "d.py"})),
        (["a.py::test_1"], changes(None, (r"a\.py::test_one", "a.py::test_1"))),
        (["d.py::test_1"], changes({"a.py": "d.py"}, (r"d\.py::test_o(.*)", r"d.py::test_1"))),
        ([], changes(None, (r"a\.py::test_one", None))),
    ],
)
def test_other_names_and_what_has_a_reason_are_not_missing(
    there: list[str], changed: dict[str, Any]
) -> None:
    assert missing(NAMES[:1], there, changed) == []
