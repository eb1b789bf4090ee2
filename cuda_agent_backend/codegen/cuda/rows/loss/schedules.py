"""Which layouts of rows and of the blocks that reduce their losses are worth trying, best guess first."""

from __future__ import annotations

from collections.abc import Iterator

from cuda_agent_backend.codegen.cuda.rows.estimate import (
    BASE_REGISTERS,
    MOST_BLOCKS,
    MOST_WARPS,
    REGISTERS,
    resident_blocks,
)
from cuda_agent_backend.codegen.cuda.rows.facts import RowFacts, row_facts
from cuda_agent_backend.codegen.cuda.rows.frame import row_groups
from cuda_agent_backend.codegen.cuda.rows.layout import read_layout
from cuda_agent_backend.codegen.cuda.rows.loss.match import LossReduction
from cuda_agent_backend.codegen.cuda.rows.loss.writer import (
    MOST_PARTIALS,
    SKETCH,
    STAYING,
    emit_loss,
    prepared,
)
from cuda_agent_backend.codegen.cuda.rows.problem import Parameters
from cuda_agent_backend.codegen.cuda.rows.schedules import row_schedules
from cuda_agent_backend.codegen.ir.device import WARP, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.region import LoweredRegion

MANY = 32
"""Rows of each multiprocessor from which one warp for a row is enough."""
ASKED = 14
"""Layouts of the rows alone that are looked at."""
IN_FLIGHT = (64, 32)
"""Registers of a thread for what it has asked for of all that it reads: few warps with much each, or more with less."""
THREADS = 128
"""Of blocks whose warps each have a row."""


def loss_schedules(
    found: LossReduction, region: LoweredRegion, device: DeviceFacts, most: int
) -> list[Parameters]:
    """Up to ``most`` schedules of both kernels as one; none where none fits.

    Raises Unsupported where the rows have no form.
    """
    rows = prepared(found.rows, region)
    facts = row_facts(rows, region)
    alone = [p for p in row_schedules(rows, region, device, ASKED) if _fits_one_launch(p)]
    ranked = _in_turns(list(_row_at_once(facts, device)), alone)
    chosen: list[Parameters] = []
    for parameters in ranked:
        for stay in _staying(parameters, facts, found.after.rows, device):
            one: Parameters = {**parameters, "sketch": SKETCH, STAYING: stay}
            if one not in chosen and _is_printed(found, region, one, device):
                chosen.append(one)
        if len(chosen) >= most:
            break
    return chosen[:most]


def _fits_one_launch(parameters: Parameters) -> bool:
    return parameters["exchange"] in ("block", "cluster") and int(parameters.get("stages", 1)) == 1


def _in_turns(left: list[Parameters], right: list[Parameters]) -> list[Parameters]:
    """The best of each first."""
    longest = max(len(left), len(right))
    return [one[n] for n in range(longest) for one in (left, right) if n < len(one)]


def _row_at_once(facts: RowFacts, device: DeviceFacts) -> Iterator[Parameters]:
    """Rows that a warp asks for all at once, of all that is read together: nothing then waits for memory twice.

    Of longer rows, or with more warps at work, as much as registers hold is on its way.
    """
    if not facts.inner or facts.arrays or facts.scans or facts.rows < MANY * device.sm_count:
        return
    words = max(1, facts.item // 4)
    vector = next((v for v in (4, 2) if v * facts.item <= 16 and facts.line % v == 0), 1)
    chunks = ceildiv(facts.points, WARP * vector)
    for held in IN_FLIGHT:
        ahead = min(chunks, max(1, held // (facts.streams * vector * words)))
        yield {
            "vector": vector,
            "team": WARP,
            "across": THREADS // WARP,
            "exchange": "block",
            "segments": 1,
            "keep": "none",
            "unroll": ahead,
            "ahead": ahead,
            "once": 1,
        }


def _staying(
    parameters: Parameters, facts: RowFacts, numbers: int, device: DeviceFacts
) -> list[int]:
    """How many blocks of each multiprocessor stay, if any: as many as are at work at once."""
    layout = read_layout(
        {n: v for n, v in parameters.items() if n != "sketch"},
        facts.points, facts.rows, False, facts.wide,
    )  # fmt: skip
    groups = row_groups(layout, facts.columns)
    if layout.clustered:
        return [0] if groups <= MOST_PARTIALS * numbers else []
    resident = resident_blocks(layout, facts)
    if layout.keep == "none":
        held = layout.unroll * layout.vector * facts.streams * max(1, facts.item // 4)
        registers = ceildiv(BASE_REGISTERS + held, 8) * 8
        by_warps = MOST_WARPS * WARP // layout.threads
        resident = min(REGISTERS // (layout.threads * registers), by_warps, MOST_BLOCKS)
    many = groups > resident * device.sm_count
    few = groups <= MOST_PARTIALS * numbers
    return [0] * few + [resident] * (many and resident > 0)


def _is_printed(
    found: LossReduction, region: LoweredRegion, parameters: Parameters, device: DeviceFacts
) -> bool:
    try:
        emit_loss(found, region, parameters, "k", device)
    except Unsupported:
        return False
    return True
