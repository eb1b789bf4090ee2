"""Look inside a compiled C++ candidate: what it asks the loader for.

The process that runs it holds torch, whose operators would do its work. A kernel of a policy may therefore not look up
what it does not link; code that finds its way through the loader's own tables in memory is not covered.
"""

from __future__ import annotations

import re

from sandbox.compile.elf import DYNAMIC_SYMBOLS, UNDEFINED, read_symbols

_LOADER = re.compile(
    r"(__libc_)?dl(m?open|v?sym|addr|info|_iterate_phdr|_find_object)|_dl_|_rtld|_r_debug"
)


def why_refused(data: bytes) -> str | None:
    """Why a shared library of a policy may not run; None if it may. Raises ElfError."""
    symbols, _ = read_symbols(data, DYNAMIC_SYMBOLS)
    wanted = sorted(s.name for s in symbols if s.section == UNDEFINED and _LOADER.match(s.name))
    return f"the code looks for other libraries in its process ({wanted[0]})" if wanted else None
