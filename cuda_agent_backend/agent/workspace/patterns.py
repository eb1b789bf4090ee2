"""Patterns for paths and lines that take linear time, whatever a policy writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LONGEST = 1000
"""Characters of a pattern."""
MEMORY = 1 << 22


@dataclass(frozen=True)
class PatternError:
    """Why a pattern is not taken."""

    reason: str


def line_matcher(pattern: str, ignore_case: bool = False) -> Callable[[str], bool] | PatternError:
    """Whether a regular expression occurs in a line; RE2, which never backtracks."""
    compiled = _compiled(pattern, ignore_case)
    if isinstance(compiled, PatternError):
        return compiled
    return lambda line: compiled.search(_clean(line)) is not None


def path_matcher(pattern: str) -> Callable[[str], bool] | PatternError:
    """Whether a path matches: * and ? within a name, ** over any number of folders, all else as it is."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.startswith("/") or ".." in parts:
        return PatternError("a pattern is relative to the workspace and holds no ..")
    said = []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            said.append(".*" if last else "(?:.*/)?")
        else:
            said.append(_name(part) + ("" if last else "/"))
    compiled = _compiled("(?s)^" + "".join(said) + "$", False)
    if isinstance(compiled, PatternError):
        return compiled
    return lambda path: compiled.search(_clean(path)) is not None


def _clean(text: str) -> str:
    """Without halves of surrogate pairs, as names of files that are not UTF-8 have them."""
    return text.encode(errors="replace").decode()


def _name(part: str) -> str:
    import re2

    return "".join({"*": "[^/]*", "?": "[^/]"}.get(c, re2.escape(c)) for c in part)


def _compiled(pattern: str, ignore_case: bool) -> Any:
    try:
        import re2
    except ImportError:
        return PatternError("patterns need the package google-re2, which is not installed")
    if len(pattern) > LONGEST:
        return PatternError(f"a pattern of {len(pattern)} characters; at most {LONGEST}")
    options = re2.Options()
    options.max_mem, options.log_errors, options.case_sensitive = MEMORY, False, not ignore_case
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        said = error.args[0] if error.args else error
        words = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        return PatternError(f"not a pattern: {words[:200]}")
