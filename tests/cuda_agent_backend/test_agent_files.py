"""The workspace and the file tools, against clumsy and hostile calls."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_agent_backend.agent.protocol import BadArguments, ToolCall, parse_arguments
from cuda_agent_backend.agent.tools.files import (
    FILE_SPECS,
    LINE_CHARACTERS,
    MOST_HITS,
    READ_CHARACTERS,
    file_tools,
    replaced,
)
from cuda_agent_backend.agent.tools.kernel_specs import SKETCH
from cuda_agent_backend.agent.tools.tool import Answer
from cuda_agent_backend.agent.workspace import folder as folder_module
from cuda_agent_backend.agent.workspace.confined_files import (
    MAX_ENTRIES,
    MAX_FILE,
    Confined,
    Refusal,
    normal,
)
from cuda_agent_backend.agent.workspace.folder import MOST_FILES, Workspace

SECRET = "the password of somebody else"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret.txt").write_text(SECRET)
    return path


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(tmp_path / "work") as made:
        made.provide("task.py", "the task\n")
        made.provide("example/kernel.cu", "an example\n")
        made.provide("plan.json", "{}\n", protect=False)
        yield made


def call(workspace: Workspace, name: str, **arguments: Any) -> Answer:
    """As the toolbox does: through JSON and the schema."""
    tool = next(tool for tool in file_tools(workspace) if tool.spec.name == name)
    parsed = parse_arguments(ToolCall.of("1", name, **arguments), tool.spec.schema)
    answer = tool.run(**parsed)
    json.dumps(answer, allow_nan=False)
    assert answer["ok"] or answer["error"]
    return answer


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_file_is_written_read_and_edited(workspace: Workspace) -> None:
    assert call(workspace, "write", path="src/k.cu", content="int a;\nint b;\n")["lines"] == 2
    assert call(workspace, "read", path="src/k.cu")["text"] == "1\tint a;\n2\tint b;"
    assert call(workspace, "edit", path="src/k.cu", old="int b", new="long b")["replaced"] == 1
    assert (workspace.root / "src/k.cu").read_text() == "int a;\nlong b;\n"


@pytest.mark.parametrize(
    "path", ["task.py", "./task.py", "example//kernel.cu", "example/./kernel.cu"]
)
def test_what_the_environment_provides_is_read_only(workspace: Workspace, path: str) -> None:
    assert call(workspace, "read", path=path)["ok"]
    before = tree(workspace.root)
    assert "read-only" in call(workspace, "write", path=path, content="mine")["error"]
    assert "read-only" in call(workspace, "edit", path=path, old="a", new="b")["error"]
    assert tree(workspace.root) == before


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd", "../outside/secret.txt", "a/../../outside/secret.txt", "..", "~/x", "", ".", "/", "a\0b",
        "x" * 1000, "/".join("d" * 30), "y" * 300, "new\nline", "\u202ereversed", "link/secret.txt", "link", "loop/x",
        "pipe", "socket", "hard", "folder", "task.py/x",
    ],
)  # fmt: skip
def test_paths_that_lead_elsewhere_are_refused(
    workspace: Workspace, outside: Path, path: str
) -> None:
    root = workspace.root
    (root / "link").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    (root / "folder").mkdir()
    os.mkfifo(root / "pipe")
    (root / "hard").hardlink_to(outside / "secret.txt")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(root / "socket"))
        for name, more in (
            ("read", {}),
            ("write", {"content": "overwritten"}),
            ("edit", {"old": "password", "new": "x"}),
            ("multi_edit", {"edits": [{"old": "password", "new": "x"}]}),
        ):
            answer = call(workspace, name, path=path, **more)
            assert not answer["ok"], (name, answer)
            assert SECRET not in json.dumps(answer)
    assert tree(outside) == {"secret.txt": SECRET.encode()}


def test_searching_shows_nothing_from_elsewhere(workspace: Workspace, outside: Path) -> None:
    (workspace.root / "link").symlink_to(outside)
    (workspace.root / "hard").hardlink_to(outside / "secret.txt")
    os.mkfifo(workspace.root / "pipe")
    assert call(workspace, "grep", pattern="password")["lines"] == []
    assert call(workspace, "glob", pattern="link/**")["paths"] == []
    for pattern in ("../**", "/etc/*", "a/../../*"):
        assert not call(workspace, "glob", pattern=pattern)["ok"]
        assert not call(workspace, "grep", pattern="x", path=pattern)["ok"]


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Another thread does the work again and again."""
    stop = threading.Event()

    def again() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def seen(answers: Sequence[object], good: object) -> bool:
    """Whether both what is right and a refusal came: threads may take turns in long stretches."""
    return good in answers and any(isinstance(answer, Refusal) for answer in answers)


def test_a_folder_that_turns_into_a_link_meanwhile_is_not_read_through(
    workspace: Workspace, outside: Path
) -> None:
    root = workspace.root
    (root / "here").mkdir()
    (root / "here/secret.txt").write_text("harmless")
    (root / "spare").symlink_to(outside)
    steps = (("here", "away"), ("spare", "here"), ("here", "spare"), ("away", "here"))

    def swap() -> None:
        for a, b in steps:
            (root / a).rename(root / b)

    end, answers = time.monotonic() + 60.0, []
    with meanwhile(swap):
        while time.monotonic() < end and not (len(answers) >= 600 and seen(answers, "harmless")):
            answers.append(workspace.read("here/secret.txt"))
    assert SECRET not in answers
    assert seen(answers, "harmless")


def test_a_folder_that_turns_into_a_link_meanwhile_is_not_written_through(
    workspace: Workspace, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "MOST_FILES", 1 << 30)  # else that may be why it refuses
    place = workspace.root / "here"

    def swap() -> None:
        try:
            place.symlink_to(outside)
            place.unlink()
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
        time.sleep(0.0002)  # has the other thread find each of the states

    end, answers = time.monotonic() + 60.0, []
    with meanwhile(swap):
        while time.monotonic() < end and not (len(answers) >= 600 and seen(answers, None)):
            answers.append(workspace.write("here/secret.txt", "overwritten"))
    assert seen(answers, None)
    assert tree(outside) == {"secret.txt": SECRET.encode()}


def test_a_file_is_read_before_it_is_changed(workspace: Workspace) -> None:
    (workspace.root / "theirs.cu").write_text("from the shell\n")
    for name, more in (("write", {"content": "x"}), ("edit", {"old": "from", "new": "x"})):
        assert "read it before" in call(workspace, name, path="theirs.cu", **more)["error"]
    call(workspace, "read", path="./theirs.cu")
    assert call(workspace, "edit", path="theirs.cu", old="from", new="by")["ok"]
    (workspace.root / "theirs.cu").write_text("changed meanwhile\n")
    for name, more in (("write", {"content": "x"}), ("edit", {"old": "changed", "new": "x"})):
        assert "has changed" in call(workspace, name, path="theirs.cu", **more)["error"]
    assert (workspace.root / "theirs.cu").read_text() == "changed meanwhile\n"


def test_an_own_file_may_be_written_again(workspace: Workspace) -> None:
    assert call(workspace, "write", path="a.cu", content="1")["ok"]
    assert call(workspace, "write", path="a.cu", content="2")["ok"]
    (workspace.root / "a.cu").unlink()
    assert call(workspace, "write", path="a.cu", content="3")["ok"]


def test_the_plan_to_begin_with_may_be_changed_once_read(workspace: Workspace) -> None:
    assert not call(workspace, "edit", path="plan.json", old="{}", new="[]")["ok"]
    assert call(workspace, "read", path="plan.json")["ok"]
    assert call(workspace, "edit", path="plan.json", old="{}", new="[]")["ok"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"text\0more", "binary"),
        (b"x" * (MAX_FILE + 1), "bytes"),
    ],
)
def test_files_that_are_no_text_are_refused(
    workspace: Workspace, content: bytes, said: str
) -> None:
    (workspace.root / "odd").write_bytes(content)
    assert said in call(workspace, "read", path="odd")["error"]
    assert call(workspace, "grep", pattern="x", path="odd")["lines"] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [("x" * (MAX_FILE + 1), "at most"), ("a\0b", "NUL"), ("\ud800", "surrogate")],
)
def test_text_that_is_no_text_is_not_written(workspace: Workspace, content: str, said: str) -> None:
    assert said in call(workspace, "write", path="a.cu", content=content)["error"]
    assert not (workspace.root / "a.cu").exists()


def test_writing_without_end_is_stopped(workspace: Workspace) -> None:
    written = [workspace.write("a.cu", str(i)) for i in range(MOST_FILES + 2)]
    assert written[0] is None
    assert isinstance(written[-1], Refusal)


def test_edits_are_all_done_or_none(workspace: Workspace) -> None:
    call(workspace, "write", path="a.cu", content="one two three\n")
    good, bad = {"old": "one", "new": "1"}, {"old": "four", "new": "4"}
    answer = call(workspace, "multi_edit", path="a.cu", edits=[good, bad])
    assert "edit 2 of 2" in answer["error"] and "nothing was changed" in answer["error"]
    assert (workspace.root / "a.cu").read_text() == "one two three\n"
    chained = [good, {"old": "1 two", "new": "12"}]
    assert call(workspace, "multi_edit", path="a.cu", edits=chained)["replaced"] == 2
    assert (workspace.root / "a.cu").read_text() == "12 three\n"


def test_edits_that_multiply_are_refused_before_memory_is_full(workspace: Workspace) -> None:
    assert call(workspace, "write", path="a", content="a")["ok"]
    edits = [{"old": "a", "new": "a" * 10, "replace_all": True}] * 12
    answer = call(workspace, "multi_edit", path="a", edits=edits)
    assert answer["error"].startswith("a: edit 7 of 12: it would make 10000000 characters")
    assert call(workspace, "read", path="a")["text"] == "1\ta"
    assert call(workspace, "multi_edit", path="a", edits=edits[:6])["replaced"] == 111_111


def test_an_edit_says_why_it_does_not_fit() -> None:
    content = "float a;\n  float b;\nfloat a;\n"
    several = replaced(content, "float a;", "x", False)
    assert isinstance(several, Refusal) and "2 times (lines 1, 3)" in several.reason
    assert replaced(content, "float a;", "x", True) == ("x\n  float b;\nx\n", 2)
    spaces = replaced(content, "    float b;", "x", False)
    assert isinstance(spaces, Refusal) and "like line 2" in spaces.reason
    same = replaced(content, "float b;", "float b;", False)
    assert isinstance(same, Refusal) and "the same" in same.reason


def test_long_files_and_lines_are_cut_and_their_size_is_told(workspace: Workspace) -> None:
    lines = ["y" * 5000, *["x" * 90] * 2000]
    (workspace.root / "long").write_text("\n".join(lines))
    answer = call(workspace, "read", path="long")
    assert len(answer["text"]) < READ_CHARACTERS + 2 * LINE_CHARACTERS
    assert f"{5000 - LINE_CHARACTERS} of 5000 characters left out" in answer["text"]
    assert answer["lines"] == 2001
    shown = answer["text"].count("\n") + 1
    assert answer["more"].endswith(f"offset {shown + 1} goes on")
    rest = call(workspace, "read", path="long", offset=2001)
    assert rest["text"] == f"2001\t{'x' * 90}" and "more" not in rest
    assert call(workspace, "read", path="long", offset=9000)["text"] == ""


def test_glob_lists_what_matches(workspace: Workspace) -> None:
    for path in ("a.cu", "b.json", "sub/c.cu", "sub/deep/d.cu", "we[i]rd.cu", "é.cu"):
        assert call(workspace, "write", path=path, content="")["ok"]

    def found(pattern: str) -> set[str]:
        return set(call(workspace, "glob", pattern=pattern)["paths"])

    assert found("*.cu") == {"a.cu", "we[i]rd.cu", "é.cu"}
    assert found("?.cu") == {"a.cu", "é.cu"}
    assert found("we[i]rd.*") == {"we[i]rd.cu"}
    assert found("**/*.cu") == {*found("*.cu"), "sub/c.cu", "sub/deep/d.cu", "example/kernel.cu"}
    assert found("sub/**") == {"sub/c.cu", "sub/deep/d.cu"}
    assert found("sub/**/d.cu") == {"sub/deep/d.cu"}
    assert {"a.cu", "task.py", "sub/deep/d.cu"} <= found("**")


def test_grep_finds_lines(workspace: Workspace) -> None:
    call(workspace, "write", path="a.cu", content="float sum;\nint x;\nFLOAT y;\n")
    assert call(workspace, "grep", pattern=r"^float\b")["lines"] == ["a.cu:1: float sum;"]
    ignoring = call(workspace, "grep", pattern="^float", ignore_case=True, path="*.cu")
    assert len(ignoring["lines"]) == 2
    call(workspace, "write", path="many", content="hit\n" * 1000)
    answer = call(workspace, "grep", pattern="hit")
    assert len(answer["lines"]) == MOST_HITS and "more" in answer


@pytest.mark.parametrize(
    "pattern", ["(", "a{2000}", "(?=x)", r"\1", "\ud800", "x" * 2000, "((a{900}){900})"]
)
def test_bad_patterns_are_answered(workspace: Workspace, pattern: str) -> None:
    assert not call(workspace, "grep", pattern=pattern)["ok"]


def test_patterns_that_would_backtrack_for_ever_do_not(workspace: Workspace) -> None:
    call(workspace, "write", path="a", content="a" * 50_000 + "!\n")
    for pattern in ("(a+)+$", "(a|a)*b", "(.*)*x", "a*a*a*a*a*a*b"):
        assert call(workspace, "grep", pattern=pattern, path="a")["lines"] == []
    assert call(workspace, "glob", pattern="*a" * 30 + "b")["paths"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_a_policy_writes_belongs_to_the_folders_owner_and_what_is_provided_does_not(
    workspace: Workspace,
) -> None:
    os.chown(workspace.root, 54321, 54321)
    assert call(workspace, "write", path="sub/a.cu", content="1")["ok"]
    workspace.provide("baselines.json", "{}")
    owner = {p: (workspace.root / p).stat().st_uid for p in ("sub", "sub/a.cu", "baselines.json")}
    assert owner == {"sub": 54321, "sub/a.cu": 54321, "baselines.json": 0}


def test_a_walk_looks_at_so_many_entries_only(tmp_path: Path) -> None:
    for number in range(MAX_ENTRIES + 50):
        (tmp_path / f"{number}").touch()
    confined = Confined(tmp_path)
    assert len(list(confined.walk())) == MAX_ENTRIES
    confined.close()


def test_a_reader_never_sees_half_of_a_file(workspace: Workspace) -> None:
    texts = {"a" * 300_000, "b" * 300_000}
    workspace.write("big", "a" * 300_000)
    seen, stop = set(), threading.Event()

    def reading() -> None:
        while not stop.is_set():
            seen.add((workspace.root / "big").read_text())

    thread = threading.Thread(target=reading)
    thread.start()
    for number in range(60):
        assert workspace.write("big", ("b" if number % 2 else "a") * 300_000) is None
    stop.set()
    thread.join()
    assert seen <= texts
    assert not [p for p in workspace.root.iterdir() if p.name.startswith(".writing")]


NAMES = st.sampled_from(
    ["..", ".", "", "a", "sub", "link", "task.py", "plan.json", "pipe", "~", "\0", "é", " "]
)
PATHS = st.one_of(st.lists(NAMES, max_size=6).map("/".join), st.text(max_size=40))


@settings(max_examples=300)
@given(path=PATHS, content=st.text(max_size=30))
def test_no_path_whatever_leaves_the_workspace(
    tmp_path_factory: pytest.TempPathFactory, path: str, content: str
) -> None:
    base = tmp_path_factory.mktemp("fuzz")
    (base / "outside").mkdir()
    (base / "outside/a").write_text(SECRET)
    with Workspace(base / "work") as made:
        made.provide("task.py", "task")
        (made.root / "link").symlink_to(base / "outside")
        os.mkfifo(made.root / "pipe")
        for name, more in (("read", {}), ("write", {"content": content}), ("read", {})):
            answer = call(made, name, path=path, **more)
            assert SECRET not in json.dumps(answer)
        call(made, "glob", pattern=path or "*")
        call(made, "grep", pattern=path or ".")
        assert (made.root / "task.py").read_text() == "task"
    assert tree(base / "outside") == {"a": SECRET.encode()}
    assert {p.name for p in base.iterdir()} == {"outside", "work"}
    assert isinstance(normal(path), str | Refusal)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
KEYS = sorted({name for spec in FILE_SPECS for name in spec.properties})


@settings(max_examples=300)
@given(
    spec=st.sampled_from(FILE_SPECS),
    arguments=st.one_of(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5), JSON),
)
def test_arguments_of_any_kind_are_taken_or_answered_with_what_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, spec: Any, arguments: Any
) -> None:
    with Workspace(tmp_path_factory.mktemp("fuzz")) as made:
        tool = next(tool for tool in file_tools(made) if tool.spec is spec)
        try:
            parsed = parse_arguments(ToolCall("1", spec.name, json.dumps(arguments)), spec.schema)
        except BadArguments as error:
            assert str(error)
            return
        json.dumps(tool.run(**parsed), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("multi_edit", '{"path": "a", "edits": [{"old": "x"}]}', "'new' is a required property"),
        ("multi_edit", '{"path": "a", "edits": [{"old": 3, "new": "x"}]}', "argument 'edits'[0]['old']"),
        ("multi_edit", '{"path": "a", "edits": []}', "at least 1 items"),
        ("multi_edit", '{"path": "a", "edits": {}}', "must be of type array"),
        ("edit", '{"path": "a", "old": "", "new": "x"}', "at least 1 characters"),
        ("edit", '{"path": "a", "old": "x", "new": "y", "replace_all": 1}', "must be of type boolean"),
        ("read", '{"path": "a", "offset": true}', "must be of type integer"),
        ("read", '{"path": "a", "offset": 0}', "minimum of 1"),
        ("read", '{"path": "a", "limit": 1e400}', "limit"),
        ("read", '{"path": "a", "limit": NaN}', "NaN is not JSON"),
        ("read", '{"path": "a", "file": "b"}', "no argument 'file'; it takes: path, offset, limit"),
        ("read", '{"path": "a"', "are not JSON"),
        ("read", '["a"]', "must be a JSON object"),
        ("read", "{}", "read needs path"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(name: str, text: str, said: str) -> None:
    spec = next(spec for spec in FILE_SPECS if spec.name == name)
    with pytest.raises(BadArguments) as caught:
        parse_arguments(ToolCall("1", name, text), spec.schema)
    assert said in str(caught.value)


def test_whole_numbers_written_with_a_point_are_whole_however_deep() -> None:
    text = '{"path": "a", "offset": 1.0, "limit": 2e3}'
    parsed = parse_arguments(ToolCall("1", "read", text), FILE_SPECS[0].schema)
    assert parsed == {"path": "a", "offset": 1, "limit": 2000}
    assert all(type(parsed[name]) is int for name in ("offset", "limit"))
    sketch = '{"schedule": [{"width": 8.0, "deep": "8.0"}]}'
    deep = parse_arguments(ToolCall("1", "sketch", sketch), SKETCH.schema)
    assert deep == {"schedule": [{"width": 8, "deep": "8.0"}]}
    assert type(deep["schedule"][0]["width"]) is int
    half = '{"path": "a", "offset": 1.5}'
    with pytest.raises(BadArguments, match="must be of type integer"):
        parse_arguments(ToolCall("1", "read", half), FILE_SPECS[0].schema)


def test_lines_are_read_from_a_place_given_with_a_point(workspace: Workspace) -> None:
    assert call(workspace, "read", path="task.py", offset=1.0)["text"] == "1\tthe task"


@pytest.mark.parametrize("path", ["baselines.json", "baselines.json/x", "./baselines.json//x/y"])
def test_nothing_is_put_where_the_baselines_will_be(workspace: Workspace, path: str) -> None:
    assert "read-only" in call(workspace, "write", path=path, content="x")["error"]
    workspace.provide("baselines.json", "{}")
