"""Several modules of PTX made one, so that one cubin holds all kernels of a plan.

The text comes from a process that is not trusted. It is only ever given to the assembler, and what that makes of it is
looked at (see `cubin`), so nothing here has to be proof against text that means something else than it seems to. But it
is read in the judge's process: in time that grows with its length and no faster, line by line, up to a length.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

MAX_CHARACTERS = 4 << 20
"""Of one module. Triton's longest are a tenth of that."""
MAX_VARIABLES = 1024
_NAME = re.compile(r"[A-Za-z_$][\w$]{0,1023}")
_WORD = re.compile(r"[\w$]+")
_TARGET = re.compile(r"^\.target[ \t]+(sm_\d+[af]?)", re.MULTILINE)
_AFTER_NAME = re.compile(r"\d+\](?: = \{[^}]*\})?;")


class PtxError(ValueError):
    """The text is not what Triton writes."""


def target_of(text: str) -> str:
    """The architecture that a module is for, such as sm_90a. Raises PtxError."""
    found = _TARGET.search(text)
    if found is None:
        raise PtxError("the PTX names no target")
    return found.group(1)


def rename(text: str, name: str, new: str) -> str:
    """The module with its kernel called otherwise. Raises PtxError where there is no such kernel."""
    if _NAME.fullmatch(name) is None:
        raise PtxError("a kernel's name is none")
    text, count = re.subn(rf"(\.entry\s+){re.escape(name)}\b", rf"\g<1>{new}", text)
    if count != 1:
        raise PtxError(f"the PTX has {count} kernels called {name}")
    return text


def without_unused(text: str) -> str:
    """Without variables that nothing names: what Triton's mathematical library leaves behind. Raises PtxError for a
    module that is longer than any of Triton's or has more variables."""
    if len(text) > MAX_CHARACTERS:
        raise PtxError(f"the PTX has more than {MAX_CHARACTERS} characters")
    lines = text.split("\n")
    variables = {number: name for number, line in enumerate(lines) if (name := _variable(line))}
    if len(variables) > MAX_VARIABLES:
        raise PtxError(f"the PTX has more than {MAX_VARIABLES} variables")
    if not variables:
        return text
    names = set(variables.values())
    times = Counter(word for found in _WORD.finditer(text) if (word := found.group()) in names)
    kept = (line for n, line in enumerate(lines) if n not in variables or times[variables[n]] > 1)
    return "\n".join(kept)


def merge(modules: Sequence[str]) -> str:
    """One module with the kernels of all. What several of them declare in the same words is declared once."""
    if len(modules) == 1:
        return modules[0]
    bodies, seen, targets = [], set(), set()
    head: list[str] = []
    for text in modules:
        lines = text.split("\n")
        begin = _length_of_head(lines)
        head = head or lines[:begin]
        targets.add(target_of("\n".join(lines[:begin])))
        for line in lines[begin:]:
            if _is_shared(line) or _variable(line):
                if line in seen:
                    continue
                seen.add(line)
            bodies.append(line)
    if len(targets) > 1:
        raise PtxError("the modules are for different architectures")
    return "\n".join([*head, *bodies])


def _length_of_head(lines: Sequence[str]) -> int:
    """Lines up to the one that says how long addresses are, which follows the target."""
    for number, line in enumerate(lines[1:], start=1):
        if line == ".address_size 64" and lines[number - 1].startswith(".target"):
            return number + 1
    raise PtxError("the PTX does not begin as Triton's does")


def _is_shared(line: str) -> bool:
    return line.startswith(".extern .shared ") and line.find(";") == len(line) - 1


def _variable(line: str) -> str | None:
    """The name of a variable, an array, that a line declares and does nothing beside."""
    if not line.startswith(".global "):
        return None
    before, _, after = line.partition("[")
    name = before.rpartition(" ")[2]
    if any(sign in before for sign in ";={") or not _WORD.fullmatch(name):
        return None
    return name if _AFTER_NAME.fullmatch(after) else None
