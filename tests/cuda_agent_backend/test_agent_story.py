"""Trajectories as pages: everything is there, and what messages say stays text."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import episode_kit as kit
import pytest
from test_agent_trajectory import play

from cuda_agent_backend.agent.protocol import Stopped, ToolCall, Turn
from cuda_agent_backend.agent.story.html import page
from cuda_agent_backend.agent.story.plot import plot
from cuda_agent_backend.agent.story.story import Story, printable, shortened, tell
from cuda_agent_backend.agent.story.terminal import pages
from cuda_agent_backend.agent.trajectories.events import Trajectory
from cuda_agent_backend.agent.trajectories.file import read
from cuda_agent_backend.cli import command as cli

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "</pre></details><h1>taken over</h1>",
    "</style><style>*{display:none}",
    "&lt;script&gt; &#x3c;b&#x3e;",
    "<!-- ",
    "]]><b>",
    "javascript:alert(1)",
    "\x1b[2J\x1b]0;title\x07 \u202egnp.exe \0 \ud800",
)
ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "b", "span"),
    *("dl", "dt", "dd", "pre", "code", "details", "summary", "figure", "figcaption"),
    *("svg", "line", "path", "circle", "text"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "open", "viewbox", "role"),
    *("aria-label", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "d", "text-anchor"),
}


class Elements(HTMLParser):
    """What a browser would make elements of, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, attrs))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def story(path: Path, steps: list[kit.Step], **changes: str) -> Story:
    play(path, steps)
    found = read(path)
    assert isinstance(found, Trajectory)
    return tell(found)


def hostile(path: Path) -> Story:
    """Every place that a policy can fill says hostile things."""
    steps: list[kit.Step] = []
    for words in HOSTILE:
        steps += [
            kit.calls(words, ToolCall(words, words, words)),
            kit.calls(500 * words, ToolCall.of("1", "draft", source=f"// {words}\n" * 3)),
            kit.calls("", ToolCall.of("1", words, **{words: words})),
            kit.calls("", ToolCall.of("1", "shell", command=words)),
            Turn(words, truncated=True),
        ]
    for number, words in enumerate(HOSTILE):
        made = kit.candidate(f"// {words}\n" * 3).digest[:12]
        steps.append(kit.calls(words, ToolCall.of("1", "profile", candidate=made)))
        assert number < 99
    return story(path, [*steps, Stopped("cost", "".join(HOSTILE))])


def html(of: Story) -> str:
    return page(of).decode("utf-8")


def test_hostile_content_never_becomes_markup(tmp_path: Path) -> None:
    found = Elements(html(hostile(tmp_path / "t.jsonl")))
    assert found.open == []
    assert {tag for tag, _ in found.elements} <= ELEMENTS
    assert {name for _, attrs in found.elements for name, _ in attrs} <= ATTRIBUTES
    for words in HOSTILE[:-1]:
        assert words in found.text
    assert [tag for tag, _ in found.elements].count("style") == 1


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    written = html(hostile(tmp_path / "t.jsonl"))
    assert "default-src 'none'" in written
    for tag, attrs in Elements(written).elements:
        assert tag not in ("script", "link", "img", "iframe", "object", "base", "form")
        assert not {name for name, _ in attrs} & {"src", "href", "style", "onload", "onerror"}
    style = written.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style
    assert "prefers-color-scheme: dark" in style


def test_no_control_character_reaches_the_page_or_the_terminal(tmp_path: Path) -> None:
    told = hostile(tmp_path / "t.jsonl")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html(told))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", on_terminal(told))


def on_terminal(told: Story) -> str:
    from rich.console import Console

    console = Console(width=120, record=True, force_terminal=False, file=io.StringIO())
    for part in pages(told):
        console.print(part)
    return console.export_text(styles=False)


def test_everything_of_an_episode_is_on_both_pages(tmp_path: Path) -> None:
    told = story(tmp_path / "t.jsonl", kit.winning())
    (slow, slower), (fast,) = kit.losers(2), kit.winners(1)
    for shown in (Elements(html(told)).text, on_terminal(told)):
        for number in range(1, len(kit.winning()) + 1):
            assert f"Turn {number}" in shown
        for name in map(kit.name_of, (slow, slower, fast)):
            assert name in shown
        assert "relu.default" in shown and "Better." in shown
        assert f"-// kernel {slow}" in shown and f"+// kernel {slower}" in shown
        assert "submitted" in shown and "promoted" in shown
        assert "cut off" in shown
    assert "wins" in html(told) and "too slow" in html(told)


def test_the_plot_has_a_mark_for_each_measurement(tmp_path: Path) -> None:
    told = story(tmp_path / "t.jsonl", kit.winning())
    assert [point.turn for point in told.points] == [2, 2, 5, 8, 9]
    root = ElementTree.fromstring(plot(told.points, len(told.chapters)))
    circles = [e for e in root.iter() if e.tag == "circle"]
    assert [c.get("class") for c in circles] == ["profile"] * 2 + ["lost", "profile", "won"]
    heights = [float(c.get("cy", "")) for c in circles]
    speeds = [point.speedup for point in told.points]
    assert sorted(range(5), key=lambda i: -heights[i]) == sorted(range(5), key=lambda i: speeds[i])
    assert plot([], 3) == ""


def test_an_unfinished_episode_is_told_as_far_as_it_went(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    play(path, kit.winning())
    content = path.read_bytes()
    for cut in (len(content) - 20, len(content) // 2, content.index(b"\n") + 1):
        path.write_bytes(content[:cut])
        found = read(path)
        assert isinstance(found, Trajectory)
        told = tell(found)
        assert told.outcome == "unfinished"
        assert "unfinished" in html(told) and "unfinished" in on_terminal(told)


def test_long_text_is_shortened_in_the_middle() -> None:
    assert shortened("abc", 10) == "abc"
    short = shortened("a" * 500 + "b" * 500, 20)
    assert short.startswith("a" * 10) and short.endswith("b" * 10) and "980 characters" in short


def test_what_is_not_printable_is_made_visible() -> None:
    assert printable("a\x1b[31m\tb\nc\x7f") == "a\u241b[31m  b\nc\u2421"


# --- the command ---


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    return tmp_path / "kernels-trajectories"


def test_the_command_lists_and_shows(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(folder / "0123456789abcdef-one.jsonl", kit.winning())
    play(folder / "fedcba9876543210-two.jsonl", [Stopped("cost", "[red]spent[/red]")])
    (folder / "junk.jsonl").write_text("junk\n")
    assert cli.main(["trajectory", "list", "--json", str(tmp_path / "list.json")]) == 0
    said = capsys.readouterr().out
    assert "submitted" in said and "cost" in said and "unreadable" in said
    listed = json.loads((tmp_path / "list.json").read_text())["episodes"]
    assert sorted(e.get("stop", "unreadable") for e in listed) == [
        "cost",
        "submitted",
        "unreadable",
    ]
    assert cli.main(["trajectory", "show", "0123"]) == 0
    assert "Turn 9" in capsys.readouterr().out
    assert cli.main(["trajectory", "show", "fedc"]) == 0
    assert "[red]spent[/red]" in capsys.readouterr().out
    out = tmp_path / "pages" / "one.html"
    assert (
        cli.main(
            ["trajectory", "show", str(folder / "0123456789abcdef-one.jsonl"), "--html", str(out)]
        )
        == 0
    )
    assert out.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("name", "said"),
    [("absent", "0 trajectories"), ("", "2 trajectories"), ("junk", "line 1: ")],
)
def test_what_cannot_be_shown_says_why(
    folder: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    play(folder / "one.jsonl", kit.winning())
    (folder / "junk.jsonl").write_text("junk\n")
    assert cli.main(["trajectory", "show", name]) == 2
    assert said in capsys.readouterr().err


def test_an_empty_folder_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trajectory", "list"]) == 0
    assert "0 episodes" in capsys.readouterr().out
