"""The package's CUDA and C++ headers as text, which generated source begins with."""

from __future__ import annotations

import functools
from pathlib import Path

_FOLDER = Path(__file__).parents[1]


@functools.cache
def header(name: str) -> str:
    """The text of a header. name: its path below ``codegen``, such as "cuda/gemm/gemm.cuh"."""
    return (_FOLDER / name).read_text(encoding="utf-8")
