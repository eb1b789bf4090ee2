"""Bodies of kernels as CUDA files with places to fill in, for kernels that are mostly the same text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import Template

from cuda_agent_backend.codegen.cuda.common.text import indented
from cuda_agent_backend.codegen.ir.headers import header

END_OF_NOTES = "// ---\n"
"""What comes before it in a file is for its readers only."""
ALONE = re.compile(r"( *)\$(\w+)")


def filled(name: str, **values: str | int | Sequence[str]) -> list[str]:
    """The lines of a template with ``$value`` replaced.

    A line that has nothing but the name of several lines is replaced by those, moved in as it is. None may be missing.

    Args:
        name: the file below ``codegen``, such as "cuda/attention/pooling/sum_tokens.cuh".
        values: text or a number for a part of a line, or lines.
    """
    inside = {key: str(value) for key, value in values.items() if isinstance(value, str | int)}
    out: list[str] = []
    for line in header(name).partition(END_OF_NOTES)[2].splitlines():
        alone = ALONE.fullmatch(line)
        value = None if alone is None else values[alone[2]]
        if alone is None or value is None or isinstance(value, str | int):
            out.append(Template(line).substitute(inside))
        else:
            out += indented(value, alone[1])
    return out
