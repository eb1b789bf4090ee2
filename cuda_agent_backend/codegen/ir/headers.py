"""The package's CUDA and C++ headers as text, which generated source begins with."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_FOLDER = Path(__file__).parents[1]
_PART = re.compile(r'^#include "(.+)"\n', re.MULTILINE)


@functools.cache
def header(name: str) -> str:
    """The text of a header, with that of its parts where it includes them: generated source is one text.

    name: its path below ``codegen``, such as "cuda/gemm/gemm.cuh". A part is named relative to its header's folder.
    """
    text = (_FOLDER / name).read_text(encoding="utf-8")
    return _PART.sub(lambda found: header(str(Path(name).parent / found[1])), text)
