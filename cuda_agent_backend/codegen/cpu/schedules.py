"""Schedules worth trying on the cpu target. `params` says what their parameters mean."""

from __future__ import annotations

from cuda_agent_backend.codegen.cpu import gemm as cpu_product
from cuda_agent_backend.codegen.cpu.gemm_match import product_of
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.schedule import Schedule

AHEAD = 1024
"""Elements that the first reading of a row may be fetched ahead of."""
ONE_THREAD_POINTS, MANY_THREADS_POINTS = 4096, 262144
"""Loop points below which one thread is enough, and above which all are surely wanted."""


def _lane_modes(kernel: Kernel) -> list[str]:
    """Lane modes that read memory contiguously, better one first."""
    inner = outer = 0
    for stage in kernel.stages:
        for i in stage.body.loads():
            assert i.index is not None
            if stage.inner:
                inner += (coefficient(i.index, stage.inner[-1][0]) == 1) * stage.points
            if kernel.outer:
                outer += (coefficient(i.index, kernel.outer[-1][0]) == 1) * stage.points
    modes = ["inner"] if inner or not outer or kernel.is_map else []
    if outer and not kernel.is_map:
        modes.append("outer")
    return modes if inner >= outer else modes[::-1]


def schedules(
    kernels: tuple[Kernel, ...], width: int, bytes_moved: int, cache_bytes: int
) -> list[Schedule]:
    """Schedules worth trying, best guess first. Streaming stores pay once a region exceeds the caches;
    below that, what reads the output next would have to fetch it again."""
    points = estimated_points(kernels)
    threads = [0] if points < ONE_THREAD_POINTS else [1] if points > MANY_THREADS_POINTS else [1, 0]
    per_kernel: list[list[dict[str, int | str]]] = []
    big = bytes_moved > cache_bytes
    for kernel in kernels:
        if product_of(kernel) is not None:
            per_kernel.append([{"rows": rows, "width": width} for rows in cpu_product.ROWS])
            continue
        options: list[dict[str, int | str]] = []
        for mode in _lane_modes(kernel):
            fetched = [(u, 0) for u in (4, 8, 2, 16)]
            if mode == "inner":
                reducing = [(4, AHEAD), (4, 0), (2, AHEAD), (8, AHEAD)]
                fetched = [(1, 0)] if kernel.is_map else reducing
            streams = [1, 0] if big else [0]
            options += [
                {"lanes": mode, "width": width, "unroll": u, "ahead": ahead, "stream": stream}
                for u, ahead in fetched
                for stream in streams
            ]
        if kernel.is_map:
            options += [{**o, "chunk": 4096} for o in options]
        per_kernel.append(options)
    return [
        s for t in threads for s in _combine([[{**o, "threads": t} for o in k] for k in per_kernel])
    ]


def _combine(per_kernel: list[list[dict[str, int | str]]]) -> list[Schedule]:
    """All firsts, then one kernel's choice changed at a time: kernels of a region hardly interact."""
    first = [options[0] for options in per_kernel]
    result = [Schedule.of(*first)]
    for position, options in enumerate(per_kernel):
        for option in options[1:]:
            result.append(
                Schedule.of(*[option if j == position else f for j, f in enumerate(first)])
            )
    return result


def estimated_points(kernels: tuple[Kernel, ...]) -> int:
    """Loop points over all stages: what decides whether threads pay."""
    return sum(k.rows * s.points for k in kernels for s in k.stages)
