"""A trajectory as people read it: turn by turn, with what each brought. See `terminal` and `html` for layout."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent_backend.agent.protocol import Message, ToolCall, Turn
from cuda_agent_backend.agent.trajectories.events import (
    Acted,
    Answered,
    Ended,
    Header,
    Resumed,
    Said,
    Trajectory,
)
from sandbox.plan.candidate import Candidate
from sandbox.verdict import Verdict

CONTEXT = 2
"""Lines around a change that a diff shows."""


@dataclass
class Call:
    """One tool call with its answer; None where there is none."""

    name: str
    arguments: dict[str, Any] | str
    answer: dict[str, Any] | str | None = None

    @property
    def status(self) -> str:
        """In a word: what became of it."""
        if not isinstance(self.answer, dict):
            return "answered" if self.answer else "not run"
        return str(self.answer.get("status") or ("ok" if self.answer.get("ok") else "error"))


@dataclass(frozen=True)
class Made:
    """A candidate, and how its source differs from that of the one before. before: its name, or ""."""

    name: str
    candidate: Candidate
    before: str
    diff: tuple[str, ...]


@dataclass
class Chapter:
    """One turn. said: what the environment said before it."""

    number: int
    turn: Turn
    used: float
    seconds: float
    said: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    verdicts: list[tuple[str, Verdict]] = field(default_factory=list)
    tools_seconds: float = 0.0


@dataclass(frozen=True)
class Point:
    """A speed-up over the faster baseline that was measured in a turn. status: of a verdict, or "profile"."""

    turn: int
    name: str
    speedup: float
    status: str


@dataclass
class Story:
    """All of an episode."""

    header: Header
    opening: list[Message] = field(default_factory=list)
    chapters: list[Chapter] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    resumed: int = 0
    torn: int = 0
    end: Ended | None = None

    @property
    def outcome(self) -> str:
        """In a word."""
        return "unfinished" if self.end is None else self.end.stop

    @property
    def operators(self) -> list[str]:
        """Of the task, shortly named."""
        try:
            nodes = json.loads(self.header.task)["nodes"]
            return [str(node["op"]).removeprefix("aten.") for node in nodes]
        except (ValueError, KeyError, TypeError):
            return []


def tell(found: Trajectory) -> Story:
    """The story of a trajectory."""
    story = Story(found.header, torn=found.torn, end=found.end)
    said: list[str] = []
    candidates: list[tuple[str, Candidate]] = []
    for event in found.events:
        match event:
            case Said(message=message) if not story.chapters and not said:
                story.opening.append(message)
            case Said(message=message):
                said.append(message["content"])
            case Acted(turn=turn, used=used, seconds=seconds):
                calls = [Call(call.name, _arguments(call)) for call in turn.calls]
                number = len(story.chapters) + 1
                story.chapters.append(Chapter(number, turn, used, seconds, said, calls))
                said = []
            case Answered() if story.chapters:
                _answer(story, event, candidates)
            case Resumed():
                story.resumed += 1
            case _:
                pass
    story.last = said
    return story


def _answer(story: Story, event: Answered, candidates: list[tuple[str, Candidate]]) -> None:
    chapter = story.chapters[-1]
    chapter.tools_seconds += event.seconds
    waiting = [call for call in chapter.calls if call.answer is None]
    for call, message in zip(waiting, event.messages, strict=False):
        call.answer = _parsed(message["content"])
    for name, candidate in event.gains.candidates.items():
        before = candidates[-1] if candidates else None
        chapter.made.append(_made(name, candidate, before))
        candidates.append((name, candidate))
    chapter.verdicts += event.gains.verdicts.items()
    story.points += _points(chapter.number, event.gains.profiles, event.gains.verdicts)


def _made(name: str, candidate: Candidate, before: tuple[str, Candidate] | None) -> Made:
    if before is None:
        return Made(name, candidate, "", ())
    old, new = before[1].source.splitlines(), candidate.source.splitlines()
    lines = difflib.unified_diff(old, new, before[0], name, lineterm="", n=CONTEXT)
    return Made(name, candidate, before[0], tuple(lines))


def _points(
    turn: int, profiles: Mapping[str, float], verdicts: Mapping[str, Verdict]
) -> Iterable[Point]:
    for name, speedup in profiles.items():
        yield Point(turn, name, speedup, "profile")
    for name, verdict in verdicts.items():
        if verdict.speed is not None:
            yield Point(turn, name, verdict.speed.speedup.median, verdict.status)


def best_so_far(points: Sequence[Point]) -> list[float]:
    """The largest speed-up up to each point."""
    best: list[float] = []
    for point in points:
        best.append(max(point.speedup, best[-1] if best else point.speedup))
    return best


def _arguments(call: ToolCall) -> dict[str, Any] | str:
    found = _parsed(call.arguments)
    return found if isinstance(found, dict) else call.arguments


def _parsed(text: str) -> dict[str, Any] | str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def printable(text: object) -> str:
    """Text without control characters, which would speak to the terminal: each as a picture of itself."""
    shown = str(text).expandtabs(4).encode("utf-8", "replace").decode("utf-8")
    return "".join(_visible(character) for character in shown)


def _visible(character: str) -> str:
    code = ord(character)
    if character == "\n":
        return character
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    hidden = 0x80 <= code < 0xA0 or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
    return "\ufffd" if hidden else character


def shortened(text: str, limit: int) -> str:
    """The beginning and the end of a long text, and how long it is."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"


def argument_text(value: Any) -> str:
    """A value of an argument or answer as people read it: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
