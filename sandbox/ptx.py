"""Several modules of PTX made one, so that one cubin holds all kernels of a plan.

The text comes from a process that is not trusted. It is only ever given to the assembler, and what that makes of it is
looked at (see `cubin`), so nothing here has to be proof against text that means something else than it seems to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEAD = re.compile(r"\A.*?^\.target[^\n]*\n\.address_size 64\n", re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r"^\.target\s+(sm_\d+[af]?)", re.MULTILINE)
_SHARED = re.compile(r"^\.extern \.shared [^;]*;\n?", re.MULTILINE)
_VARIABLE = re.compile(r"^\.global [^;={]*?([\w$]+)\[\d+\](?: = \{[^}]*\})?;\n?", re.MULTILINE)


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
    text, count = re.subn(rf"(\.entry\s+){re.escape(name)}\b", rf"\g<1>{new}", text)
    if count != 1:
        raise PtxError(f"the PTX has {count} kernels called {name}")
    return text


def without_unused(text: str) -> str:
    """Without variables that nothing names: what Triton's mathematical library leaves behind."""

    def used(found: re.Match[str]) -> str:
        name = re.escape(found.group(1))
        return found.group(0) if len(re.findall(rf"(?<![\w$]){name}(?![\w$])", text)) > 1 else ""

    return _VARIABLE.sub(used, text)


def merge(modules: Sequence[str]) -> str:
    """One module with the kernels of all. What several of them declare in the same words is declared once."""
    if len(modules) == 1:
        return modules[0]
    bodies, seen, heads = [], set(), []
    for text in modules:
        head = _HEAD.match(text)
        if head is None:
            raise PtxError("the PTX does not begin as Triton's does")
        heads.append(head.group(0))

        def once(found: re.Match[str]) -> str:
            new = found.group(0).strip() not in seen
            seen.add(found.group(0).strip())
            return found.group(0) if new else ""

        bodies.append(_VARIABLE.sub(once, _SHARED.sub(once, text[head.end() :])))
    if len({target_of(head) for head in heads}) > 1:
        raise PtxError("the modules are for different architectures")
    return heads[0] + "\n".join(bodies)
