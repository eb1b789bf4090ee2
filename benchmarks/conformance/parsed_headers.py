"""System headers of C++ candidates, parsed once for all that is compiled afterwards.

They take g++ most of the time that a small kernel takes. What comes out is the same, byte for byte: the compiler goes
on from where it was behind the headers, and reads their text again where its flags are not those that it had then.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sandbox.compile.candidate import CXX_FLAGS
from sandbox.compile.outcome import CompileFailed, CompileTimedOut, failure_of
from sandbox.compile.toolchain import Missing, find_cxx
from sandbox.isolation import trees
from sandbox.isolation.limits import Limits, run_limited

NAME = "system.h"
TEXT = """\
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <limits>
#include <type_traits>
#if defined(__AVX__)
#include <immintrin.h>
#endif
"""
"""What the kernels of our sketches include; a kernel that includes other headers has those parsed as ever."""


@dataclass(frozen=True)
class ParsedHeaders:
    """Headers that `compile_candidate` may be given. folder: its ``include``."""

    folder: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """Its ``cxx_flags``."""
        return ("-include", str(self.folder / NAME))


def parse_headers(
    folder: Path, timeout_s: float = 120.0
) -> ParsedHeaders | CompileFailed | CompileTimedOut:
    """Parse into folder, which must be as trusted as the compiler: whoever writes there writes what is compiled.

    Takes about two seconds, and 40 MB. Built aside, then renamed. timeout_s: seconds that the compiler has.
    """
    toolchain = find_cxx()
    if isinstance(toolchain, Missing):
        return CompileFailed(f"{toolchain.reason}; {toolchain.remedy}", passing=True)
    if toolchain.path.name != "g++":
        return CompileFailed(f"{toolchain.path}: only g++'s parsed headers are known here")
    parsed = f"{NAME}.gch"
    flags = [flag for flag in CXX_FLAGS if flag != "-shared"]
    argv = [str(toolchain.path), *flags, "-x", "c++-header", NAME, "-o", parsed]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with trees.temporary("parsing-", folder) as name:
            aside = Path(name)
            (aside / NAME).write_text(TEXT)
            limits = Limits(wall_s=timeout_s, cpu_s=int(2 * timeout_s) + 1)
            failure = failure_of(run_limited(argv, aside, limits))
            if failure is not None:
                return failure
            for file in (NAME, parsed):
                (aside / file).replace(folder / file)
    except OSError as error:
        return CompileFailed(f"cannot write to {folder}: {error}", passing=True)
    return ParsedHeaders(folder)
