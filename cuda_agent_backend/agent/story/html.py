"""A story as one HTML file: no script, nothing from elsewhere, and what messages say is text whatever they say.

Every value goes through `text`, which escapes it; the page's own policy for content forbids all but its style, should
one be forgotten.
"""

from __future__ import annotations

import datetime
from html import escape
from typing import Any

from cuda_agent_backend.agent.story.plot import plot
from cuda_agent_backend.agent.story.story import (
    Call,
    Chapter,
    Made,
    Story,
    argument_text,
    printable,
    shortened,
)
from cuda_agent_backend.agent.story.style import STYLE

SHORT, LONG = 300, 200_000
GOOD = ("wins", "submitted", "correct", "ok", "answered")
FAIR = (
    "too_slow",
    "unchecked",
    "noisy",
    "no_memory",
    "time",
    "turns",
    "unfinished",
    "infrastructure",
)


def page(story: Story) -> bytes:
    """The whole file."""
    title = text(f"Episode on {story.header.task_digest[:12]}")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>",
        f"<h1>{title} {badge(story.outcome)}</h1>",
        _facts(story),
    ]
    drawn = plot(story.points, len(story.chapters))
    if drawn:
        legend = "filled: judged; hollow: profiled; line: best so far; dashed: a win begins"
        caption = f"Speed-up over the faster baseline, by turn ({legend})"
        parts.append(f"<figure>{drawn}<figcaption>{text(caption)}</figcaption></figure>")
    for message in story.opening:
        parts.append(
            _folded(f"The task, as the {message['role']} message says it", message["content"])
        )
    parts += map(_chapter, story.chapters)
    parts += [f'<p class="said">{text(said)}</p>' for said in story.last]
    parts.append("</main></body></html>\n")
    return "\n".join(parts).encode("utf-8")


def text(value: object) -> str:
    """As text in a page, in an element or an attribute."""
    return escape(printable(value), quote=True)


def badge(status: str) -> str:
    """A word in the colour of what it means."""
    kind = "good" if status in GOOD else "fair" if status in FAIR else "bad"
    return f'<span class="badge {kind}">{text(status.replace("_", " "))}</span>'


def _facts(story: Story) -> str:
    header, end = story.header, story.end
    started = datetime.datetime.fromtimestamp(header.started, datetime.UTC)
    rows: list[tuple[str, str]] = [
        ("Task", f"{header.task_digest[:16]} for {header.target}: {', '.join(story.operators)}"),
        ("Policy", f"{header.policy} ({header.spec})"),
        ("Started", f"{started:%Y-%m-%d %H:%M:%S} UTC, budget {header.budget_s:.3g} s"),
        ("Toolchain", f"{header.toolchain}, verifier {header.verifier}"),
        (
            "Machine",
            ", ".join(str(header.machine[n]) for n in ("cpu", "gpu") if header.machine.get(n)),
        ),
        ("Turns", f"{len(story.chapters)}"),
    ]
    if story.resumed:
        rows.append(("Interrupted", f"taken up again {story.resumed} times"))
    if story.torn:
        rows.append(("Torn", f"the last line, of which there are {story.torn} bytes, is left out"))
    if end is not None:
        reward = "unknown" if end.reward is None else f"{end.reward:g}"
        rows += [("Reason", end.reason), ("Reward", f"{reward}, after {end.used:.1f} s")]
    tokens = [c.turn.usage for c in story.chapters if c.turn.usage is not None]
    if tokens:
        read, wrote = sum(u.prompt_tokens for u in tokens), sum(u.completion_tokens for u in tokens)
        rows.append(
            ("Tokens", f"{read} read, {wrote} written, cost {sum(u.cost for u in tokens):.4g}")
        )
    cells = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in rows)
    return f"<dl>{cells}</dl>"


def _chapter(chapter: Chapter) -> str:
    names = text(", ".join(call.name for call in chapter.calls) or "no call")
    badges = "".join(badge(verdict.status) for _, verdict in chapter.verdicts)
    times = f"{chapter.seconds:.1f} s + {chapter.tools_seconds:.1f} s"
    parts = [f'<p class="said">{text(said)}</p>' for said in chapter.said]
    parts.append(
        f'<details class="turn" open><summary><b>Turn {chapter.number}</b> {names} {badges}'
        f'<span class="times">{text(times)}</span></summary>'
    )
    if chapter.turn.truncated:
        parts.append("<p>" + badge("cut off") + "</p>")
    if chapter.turn.content:
        parts.append(_thoughts(chapter.turn.content))
    parts += map(_call, chapter.calls)
    parts += map(_made, chapter.made)
    for name, verdict in chapter.verdicts:
        parts.append(f"<p>{badge(verdict.status)} {text(name)}: {text(verdict.reason)}</p>")
    return "\n".join([*parts, "</details>"])


def _thoughts(content: str) -> str:
    if len(content) <= SHORT:
        return f'<p class="thoughts">{text(content)}</p>'
    return (
        f'<details class="thoughts"><summary>{text(shortened(content, SHORT))}</summary>'
        f"<pre>{text(shortened(content, LONG))}</pre></details>"
    )


def _call(call: Call) -> str:
    parts = [
        f'<details class="call"><summary><code>{text(call.name)}</code> {badge(call.status)}</summary>'
    ]
    parts.append(_values(call.arguments))
    if call.answer is not None:
        parts.append('<p class="arrow">answer</p>')
        parts.append(_values(call.answer))
    return "".join([*parts, "</details>"])


def _values(value: dict[str, Any] | str) -> str:
    if isinstance(value, str):
        return f"<pre>{text(shortened(value, LONG))}</pre>"
    cells = "".join(
        f"<dt>{text(name)}</dt><dd><pre>{text(shortened(argument_text(item), LONG))}</pre></dd>"
        for name, item in value.items()
    )
    return f'<dl class="values">{cells}</dl>'


def _made(made: Made) -> str:
    if not made.before:
        return _folded(f"Candidate {made.name}: {made.candidate.language}", made.candidate.source)
    kinds = {"+": "plus", "-": "minus", "@": "hunk"}
    lines = "".join(
        f'<span class="{kinds.get(line[:1], "same")}">{text(line)}</span>' for line in made.diff[2:]
    )
    changed = sum(line[:1] in "+-" for line in made.diff[2:])
    title = text(f"Candidate {made.name}: {changed} lines changed from {made.before}")
    inner = f'<pre class="diff">{lines or "no line differs: another plan"}</pre>'
    whole = _folded("whole source", made.candidate.source)
    return f'<details class="made"><summary>{title}</summary>{inner}{whole}</details>'


def _folded(title: str, content: str) -> str:
    inner = f"<pre>{text(shortened(content, LONG))}</pre>"
    return f'<details class="made"><summary>{text(title)}</summary>{inner}</details>'
