"""How scatters are laid over blocks, and which ways are worth trying, best guess first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.scatter.match import Operand, Produced, Scatter
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.parameters import integer, string, switch
from cuda_agent_backend.codegen.ir.schedule import Parameter

SECTOR = 8
"""Neighbours of float32 that memory is read by."""
MOST_FLIGHT = 16


@dataclass(frozen=True)
class ScatterParams:
    """The schedule's parameters; ``tile`` is for "shared", ``vector`` and ``test`` are for "global"."""

    scatter: str = string(
        'where values are joined: in "shared" memory, or in "global" memory',
        among=("shared", "global"),
    )
    threads: int = integer("threads of a block", most=MAX_THREADS)
    flight: int = integer("values of a thread that are under way", most=MOST_FLIGHT)
    tile: int = integer('for "shared": the neighbours of each place that a block has', default=1)
    vector: int = integer('for "global": the neighbours of a thread', default=1)
    test: int = switch(
        'for "global": 1 where a result is read first and left alone if it is beyond the value already',
        default=0,
    )


def scatter_schedules(
    form: Scatter, vector: int, device: DeviceFacts
) -> Iterator[dict[str, Parameter]]:
    """In shared memory first. Those that do not fit are among them. vector: neighbours of a thread, at most."""
    yield from _in_shared_memory(form, device)
    tests = (1, 0) if form.how != "sum" else (0,)
    for test in tests:
        for v, flight in dict.fromkeys(((vector, 4), (vector, 1), (1, 4))):
            yield {"scatter": "global", "vector": v, "threads": 256, "flight": flight, "test": test}


def _in_shared_memory(form: Scatter, device: DeviceFacts) -> Iterator[dict[str, Parameter]]:
    """Worth it where there are enough blocks, and values enough for each to make up for the start."""
    for tile in dict.fromkeys((form.inner, 32, 16, SECTOR)):
        blocks = form.outer * ceildiv(form.inner, tile)
        fits = 4 * form.size * tile <= device.shared_per_block_bytes
        if tile <= form.inner and fits and 2 * blocks >= device.sm_count:
            for threads in (256, 512, 1024):
                if threads <= max(256, form.count * tile):
                    yield {"scatter": "shared", "tile": tile, "threads": threads, "flight": 8}
            break


def neighbours_at_once(form: Scatter, line: int | None) -> int:
    """Neighbours of a thread that all alignments allow.

    line: neighbours that are made at one place of all loops but the innermost; None where values are in memory.
    """
    whole = form.out[2] == 1 and form.inner % 4 == 0 and not any(s % 4 for s in form.out[:2])
    fours = _lies_in_fours(form.source) if line is None else line % 4 == 0
    return 4 if whole and fours else 1


def _lies_in_fours(source: Operand | Produced) -> bool:
    assert isinstance(source, Operand)
    return source.input is None or (
        source.steps[2] == 1 and not any(s % 4 for s in source.steps[:2])
    )
