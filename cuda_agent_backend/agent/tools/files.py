"""The file tools: read, write, edit, multi_edit, glob and grep in the workspace."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cuda_agent_backend.agent.tools.tool import Answer, Spec, Tool, failed, flag, text, whole
from cuda_agent_backend.agent.workspace.confined_files import MAX_FILE
from cuda_agent_backend.agent.workspace.folder import Refusal, Workspace
from cuda_agent_backend.agent.workspace.patterns import PatternError, line_matcher, path_matcher

READ_CHARACTERS, LINE_CHARACTERS = 40_000, 600
"""Of one answer, and of one line in it."""
MOST_PATHS, MOST_HITS = 200, 100
SEARCH_S = 5.0
MOST_EDITS = 100

_PATH = text("path within the workspace, such as kernel.cu")
_EDIT: Mapping[str, Any] = {
    "old": text("text to replace, exactly as it is in the file", minLength=1),
    "new": text("text to put there"),
    "replace_all": flag("replace every occurrence; otherwise there must be exactly one"),
}
READ = Spec(
    "read",
    "Read a text file. Lines come with their number and a tab, which are no part of the file.",
    {
        "path": _PATH,
        "offset": whole("first line to show, from 1", 1, 1 << 31),
        "limit": whole("how many lines", 1, 1 << 31),
    },
    ("path",),
)
WRITE = Spec(
    "write",
    "Write a whole file, making its folders. A file that exists must have been read before.",
    {"path": _PATH, "content": text("the file's text")},
    ("path", "content"),
)
EDIT = Spec(
    "edit",
    "Replace text in a file that was read. The old text must occur exactly once, unless replace_all is true.",
    {"path": _PATH, **_EDIT},
    ("path", "old", "new"),
)
MULTI_EDIT = Spec(
    "multi_edit",
    "Several edits of one file, each on what the ones before made of it: all of them, or none if one does not fit.",
    {
        "path": _PATH,
        "edits": {
            "type": "array",
            "description": "edits in order",
            "minItems": 1,
            "maxItems": MOST_EDITS,
            "items": {
                "type": "object",
                "properties": dict(_EDIT),
                "required": ["old", "new"],
                "additionalProperties": False,
            },
        },
    },
    ("path", "edits"),
)
GLOB = Spec(
    "glob",
    "List files whose path matches a pattern: * and ? within a name, ** over folders.",
    {"pattern": text("such as *.cu or **/*.json", minLength=1)},
    ("pattern",),
)
GREP = Spec(
    "grep",
    "Find lines that match a regular expression (RE2 syntax: no look-around, no back-references).",
    {
        "pattern": text("regular expression", minLength=1),
        "path": text("files to look at, as a glob pattern; all where it is not given"),
        "ignore_case": flag("whether upper and lower case are one"),
    },
    ("pattern",),
)
FILE_SPECS = (READ, WRITE, EDIT, MULTI_EDIT, GLOB, GREP)


def file_tools(workspace: Workspace) -> list[Tool]:
    """The tools, on a workspace."""
    functions: tuple[Callable[..., Answer], ...] = (read, write, edit, multi_edit, glob, grep)
    pairs = zip(FILE_SPECS, functions, strict=True)
    return [Tool(spec, partial(function, workspace)) for spec, function in pairs]


def read(workspace: Workspace, path: str, offset: int = 1, limit: int = 2000) -> Answer:
    """See `READ`."""
    found = workspace.read(path)
    if isinstance(found, Refusal):
        return failed(f"{path}: {found.reason}")
    lines = found.splitlines()
    shown: list[str] = []
    size = 0
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], offset):
        shown.append(f"{number}\t{_short(line)}")
        size += len(shown[-1]) + 1
        if size > READ_CHARACTERS:
            break
    answer: Answer = {"ok": True, "text": "\n".join(shown), "lines": len(lines)}
    last = offset - 1 + len(shown)
    if last < len(lines):
        answer["more"] = f"{len(lines) - last} lines are left; offset {last + 1} goes on"
    return answer


def _short(line: str) -> str:
    if len(line) <= LINE_CHARACTERS:
        return line
    return f"{line[:LINE_CHARACTERS]} [... {len(line) - LINE_CHARACTERS} of {len(line)} characters left out]"


def write(workspace: Workspace, path: str, content: str) -> Answer:
    """See `WRITE`."""
    refused = workspace.write(path, content)
    if refused is not None:
        return failed(f"{path}: {refused.reason}")
    return {"ok": True, "path": path, "lines": len(content.splitlines())}


def edit(workspace: Workspace, path: str, old: str, new: str, replace_all: bool = False) -> Answer:
    """See `EDIT`."""
    return multi_edit(workspace, path, [{"old": old, "new": new, "replace_all": replace_all}])


def multi_edit(workspace: Workspace, path: str, edits: Sequence[Mapping[str, Any]]) -> Answer:
    """See `MULTI_EDIT`."""
    found = workspace.seen_text(path)
    if isinstance(found, Refusal):
        return failed(f"{path}: {found.reason}")
    places = 0
    for number, change in enumerate(edits, 1):
        applied = replaced(found, change["old"], change["new"], change.get("replace_all", False))
        if isinstance(applied, Refusal):
            which = f"edit {number} of {len(edits)}: " if len(edits) > 1 else ""
            return failed(f"{path}: {which}{applied.reason}; nothing was changed")
        found, count = applied
        places += count
    refused = workspace.write(path, found)
    if refused is not None:
        return failed(f"{path}: {refused.reason}")
    return {"ok": True, "path": path, "replaced": places}


def replaced(content: str, old: str, new: str, every: bool) -> tuple[str, int] | Refusal:
    """The content with `old` replaced, and how often; refused where it is not there, unless `every` not unique, or
    where more would come out than a file holds."""
    count = content.count(old)
    if count == 0:
        near = _nearest(content, old)
        return Refusal(f"the old text does not occur{near}")
    if count > 1 and not every:
        lines = [content[:at].count("\n") + 1 for at in _places(content, old)[:5]]
        return Refusal(
            f"the old text occurs {count} times (lines {', '.join(map(str, lines))}"
            f"{' ...' if count > 5 else ''}): give more of what is around it, or replace_all"
        )
    if old == new:
        return Refusal("old and new text are the same")
    size = len(content) + count * (len(new) - len(old))
    if size > MAX_FILE:  # before it is made: edits that follow each other multiply
        return Refusal(
            f"it would make {size} characters of it; a file has at most {MAX_FILE} bytes"
        )
    return content.replace(old, new), count


def _places(content: str, old: str) -> list[int]:
    found: list[int] = []
    at = content.find(old)
    while at >= 0 and len(found) < 6:
        found.append(at)
        at = content.find(old, at + len(old))
    return found


def _nearest(content: str, old: str) -> str:
    """Where the old text would be but for spaces."""
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    for number, line in enumerate(content.splitlines(), 1):
        if first and line.strip() == first:
            return (
                f" (its first line is like line {number}: compare spaces, and the lines after it)"
            )
    return ""


def glob(workspace: Workspace, pattern: str) -> Answer:
    """See `GLOB`."""
    matches = path_matcher(pattern)
    if isinstance(matches, PatternError):
        return failed(matches.reason)
    paths = [path for path in workspace.paths() if matches(path)]
    answer: Answer = {"ok": True, "paths": paths[:MOST_PATHS], "count": len(paths)}
    return answer


def grep(workspace: Workspace, pattern: str, path: str = "**", ignore_case: bool = False) -> Answer:
    """See `GREP`."""
    matches, wanted = line_matcher(pattern, ignore_case), path_matcher(path)
    for made in (matches, wanted):
        if isinstance(made, PatternError):
            return failed(made.reason)
    assert not isinstance(matches, PatternError) and not isinstance(wanted, PatternError)
    until = time.monotonic() + SEARCH_S
    hits: list[str] = []
    for name in filter(wanted, workspace.paths()):
        content = workspace.text_of(name)
        for number, line in enumerate(
            [] if isinstance(content, Refusal) else content.splitlines(), 1
        ):
            if time.monotonic() > until:
                return _hits(hits, f"stopped after {SEARCH_S:g} s")
            if matches(line):
                hits.append(f"{name}:{number}: {_short(line)}")
            if len(hits) >= MOST_HITS:
                return _hits(hits, f"the first {MOST_HITS} lines; there may be more")
    return _hits(hits, "")


def _hits(hits: list[str], more: str) -> Answer:
    kept: list[str] = []
    size = 0
    for hit in hits:
        size += len(hit) + 1
        if size > READ_CHARACTERS:
            more = f"{len(hits) - len(kept)} of {len(hits)} lines left out"
            break
        kept.append(hit)
    return {"ok": True, "lines": kept, **({"more": more} if more else {})}
