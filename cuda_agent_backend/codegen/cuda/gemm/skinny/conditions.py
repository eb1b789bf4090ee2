"""What the mask of an operand says, as a C expression: decided here where ranges of loops decide it."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from cuda_agent_backend.codegen.cuda.pointwise.tile_printer import Ranges, bounds
from cuda_agent_backend.codegen.ir.facts import AT_LEAST
from cuda_agent_backend.codegen.ir.printer import c_index
from cuda_agent_backend.codegen.ir.ssa import Body, Value


def condition_text(mask: Body, change: Mapping[sympy.Symbol, sympy.Expr], ranges: Ranges) -> str:
    """C for what a mask says, "" where that is true and "false" where it is not, wherever in ``ranges``."""
    indices: dict[Value, sympy.Expr] = {}
    said: dict[Value, str] = {}
    for i in mask.instructions:
        if i.index is not None:
            indices[i.result] = i.index.xreplace(dict(change))
        elif i.op in AT_LEAST:
            a, b = (indices[o] for o in i.operands)
            said[i.result] = _not_negative(sympy.expand(AT_LEAST[i.op](a, b)), ranges)
        else:
            both = [said[o] for o in i.operands if said[o]]
            said[i.result] = "false" if "false" in both else " && ".join(dict.fromkeys(both))
    return said[mask.results[0]]


def _not_negative(wanted: sympy.Expr, ranges: Ranges) -> str:
    """C for ``wanted >= 0``, as `condition_text`."""
    ends = bounds(wanted, ranges)
    if ends is not None and (ends[0] >= 0 or ends[1] < 0):
        return "" if ends[0] >= 0 else "false"
    return f"{c_index(wanted)} >= 0"
