"""Layouts of row kernels that the estimate does not find: each is for one kind of kernel, and says for which.

Every function gives schedules, best guess first, and none where it is not for the kernel.
"""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.common.sizes import powers
from cuda_agent_backend.codegen.cuda.rows.candidates import MOST_CLUSTER, MOST_SPLIT
from cuda_agent_backend.codegen.cuda.rows.cooperative_schedules import grid_schedules
from cuda_agent_backend.codegen.cuda.rows.estimate import REGISTERS
from cuda_agent_backend.codegen.cuda.rows.frame import row_groups
from cuda_agent_backend.codegen.cuda.rows.prepare.row_blocking import TOGETHER, reused_loop
from cuda_agent_backend.codegen.cuda.rows.problem import Parameters, RowProblem
from cuda_agent_backend.codegen.cuda.rows.transposed_loads import square_schedules
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, WARP, ceildiv
from cuda_agent_backend.codegen.ir.loops import merge_outer

KEPT_OF_PRODUCTS, PRODUCT_REGISTERS = 28, 64
"""Factors that a thread keeps of a row, and the registers that this takes with what goes before them in double."""
LEAST_IN_ONE_GO, MOST_IN_ONE_GO = 8, 1 << 14
"""Partial results of a row that one block still joins quickly."""
MOST_IN_ONE_WAVE = 64
"""Partial results of a column that each of its blocks joins by itself."""
MANY_BLOCKS = 16
"""For each multiprocessor, from which on they even out."""
ASKED = ((2, 3), (4, 2))
"""Chunks that a thread asks for together, and blocks of each multiprocessor then: more with fewer, fewer with more."""
FULL_WAVE = 0.85
"""Of the blocks that would fit, so many have to be there: the others' multiprocessors ask for less."""
ASKED_REGISTERS = 64
"""Of a thread, for what it asks for together."""
BRANCHING = frozenset(
    ("div", "erf", "expm1", "log", "log10", "log1p", "log2", "pow", "sqrt", "tanh", "truediv")
)
"""Functions with a branch for rare numbers, before which the compiler asks for nothing that comes after."""
LEAST_SHARED_BYTES = 64 << 10
"""Of what rows share, from which on it no longer stays in the L1 cache beside all else that goes through there."""
TOGETHER_ROWS = (4, 3, 2)
"""How many rows are taken together: the first that divides their number."""


def single_pass_blocks(problem: RowProblem) -> list[Parameters]:
    """Two ways to cut long rows into blocks that load all they ever do at once, as those of a pointwise kernel do.

    Blocks that stay and loop over equal parts end when the slowest multiprocessor does, and read at many places of
    memory at once. Here a multiprocessor takes the next block when it is ready, and blocks side by side read
    neighbours.
    """
    facts = problem.facts
    if not _is_one_reduction(problem) or problem.is_in_l2:
        return []
    vector = problem.vector(facts.line)
    found: list[Parameters] = []
    for team, elements in ((256, 32), (512, 16), (512, 32), (1024, 32)):
        segments = ceildiv(facts.points, team * max(vector, elements))
        if not LEAST_IN_ONE_GO <= segments <= MOST_IN_ONE_GO:
            continue
        if segments * facts.rows < MANY_BLOCKS * problem.device.sm_count:
            continue
        cut: Parameters = {"vector": vector, "team": team, "across": 1, "exchange": "split"}
        cut |= {"segments": segments, "keep": "none"}
        layout = problem.layout(cut)
        # the loop's whole turns, written out
        found.append({"sketch": "row", **cut, "unroll": max(1, layout.segment // layout.tile)})
    return found[:2]


def _is_one_reduction(problem: RowProblem) -> bool:
    """Whether rows that are contiguous are reduced in one pass, and nothing else is made of them."""
    facts = problem.facts
    several = facts.arrays or facts.scans or facts.writes or facts.passes > 1
    return facts.inner and not several


def loads_ahead(problem: RowProblem) -> list[Parameters]:
    """Ways to keep more of what is read under way, where several operands are read or functions branch.

    A wave of blocks is what fits with the registers that this takes: none waits for a second, which would not be full.
    """
    facts, device = problem.facts, problem.device
    if not _is_one_reduction(problem):
        return []
    stages = [s for s in problem.kernel.stages if s.inner]
    branching = any(i.op in BRANCHING for s in stages for i in s.body.walk())
    if (not branching and facts.streams < 2) or problem.is_in_l2:
        return []
    vector = problem.vector(facts.line)
    words = vector * max(1, facts.item // 4) * facts.streams
    found: list[Parameters] = []
    for ahead, resident in ASKED:
        segments = resident * device.sm_count // facts.rows
        if not 1 <= segments <= MOST_SPLIT or ahead * words > ASKED_REGISTERS:
            continue
        if segments * facts.rows < FULL_WAVE * resident * device.sm_count:
            continue
        exchange = "block" if segments == 1 else "split"
        if 1 < segments <= MOST_CLUSTER // 2 and device.has_clusters:
            exchange = "cluster"
        cut: Parameters = {"sketch": "row", "vector": vector, "team": 256, "across": 1}
        cut |= {"exchange": exchange, "segments": segments, "keep": "none"}
        found.append({**cut, "unroll": ahead, "ahead": ahead})
    return found


def blocked_rows(problem: RowProblem) -> list[Parameters]:
    """Two ways to read what long rows share once for several rows; otherwise as `single_pass_blocks`."""
    facts = problem.facts
    if not single_pass_blocks(problem) or facts.points * facts.item < LEAST_SHARED_BYTES:
        return []
    loop = reused_loop(merge_outer(problem.kernel))
    count = next((n for n in TOGETHER_ROWS if loop is not None and loop[1] % n == 0), 1)
    if count == 1:
        return []
    vector, team = problem.vector(facts.line), 256
    found: list[Parameters] = []
    for chunks, once in ((8 // count, 1), (16 // count, 0)):
        cut: Parameters = {"vector": vector, "team": team, "across": 1, "exchange": "split"}
        cut |= {"segments": ceildiv(facts.points, team * vector * chunks), "keep": "none"}
        cut |= {"unroll": chunks, "whole": 1, "once": once, TOGETHER: count}
        found.append({"sketch": "row", **cut})
    return found


def running_products(problem: RowProblem) -> list[Parameters]:
    """A way to keep rows in so few registers, with what goes before a vector in double, that many are under way."""
    facts = problem.facts
    if not facts.products or not facts.inner:
        return []
    vector = problem.vector(facts.store_line)
    for team in powers(WARP, MAX_THREADS):
        kept: Parameters = {"vector": vector, "team": team, "across": max(1, 128 // team)}
        kept |= {"exchange": "block", "segments": 1, "keep": "registers"}
        layout = problem.layout(kept, ordered=True)
        if layout.chunks * vector <= KEPT_OF_PRODUCTS:
            blocks = REGISTERS // (PRODUCT_REGISTERS * layout.threads)
            return [{"sketch": "row", **kept, "blocks": blocks}]
    return []


def columns_in_one_wave(problem: RowProblem) -> list[Parameters]:
    """Two ways to read columns twice that no cluster keeps: as many blocks as are at work at once, each as long as all.

    More blocks would join more partial results, and those of a last wave that is not full leave processors idle.
    """
    facts = problem.facts
    if not facts.outer or facts.scans or facts.passes < 2 or not facts.writes or problem.is_in_l2:
        return []
    vector = problem.vector(facts.columns)
    found: list[Parameters] = []
    for across, resident in ((WARP, 3), (WARP // 4, 4)):
        cut: Parameters = {"lanes": "outer", "vector": vector, "team": 256 // across}
        cut |= {"across": across, "exchange": "split", "keep": "none", "unroll": 8, "stream": 1}
        groups = row_groups(problem.layout(cut), facts.columns)
        segments = resident * problem.device.sm_count // groups
        if 1 < segments <= MOST_IN_ONE_WAVE:
            found.append({"sketch": "row", **cut, "segments": segments})
    return found


def transposed_squares(problem: RowProblem) -> list[Parameters]:
    """Sums of which some operands lie along the rows and others across them (see `transposed_loads`)."""
    facts = problem.facts
    found = square_schedules(problem.kernel, facts.item, facts.line, facts.columns, problem.device)
    return [{"sketch": "row", **p} for p in found]


def cooperative_blocks(problem: RowProblem) -> list[Parameters]:
    """Rows that no cluster holds well, kept by blocks that stay on the device (see `cooperative`)."""
    facts = problem.facts
    return grid_schedules(facts, problem.device, problem.vector(facts.line), problem.fits)
