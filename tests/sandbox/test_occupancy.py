"""Blocks that fit on an SM, against numbers that NVIDIA's own calculator gives."""

from __future__ import annotations

import pytest

from sandbox.compile.occupancy import SM_LIMITS, limits_of, residency
from sandbox.plan.steps import ResolvedLaunch


def launch(threads: int, shared: int = 0) -> ResolvedLaunch:
    return ResolvedLaunch("k", (1, 1, 1), (threads, 1, 1), shared, None, ())


@pytest.mark.parametrize(
    ("threads", "registers", "static", "dynamic", "blocks", "scarce"),
    [
        (256, 32, 0, 0, 8, "threads"),
        (256, 64, 0, 0, 4, "registers"),
        (1024, 64, 0, 0, 1, "registers"),
        (1024, 65, 0, 0, 0, "registers"),
        (32, 16, 0, 0, 32, "blocks"),
        (128, 16, 0, 48 * 1024, 4, "shared memory"),
        (128, 16, 0, 227 * 1024, 1, "shared memory"),
        (128, 16, 1024, 227 * 1024, 0, "shared memory"),
        (33, 255, 0, 0, 4, "registers"),
        (64, 40, 0, 0, 24, "registers"),
        (32, 88, 0, 0, 20, "registers"),
    ],
)
def test_blocks_on_an_sm_of_an_h200(
    threads: int, registers: int, static: int, dynamic: int, blocks: int, scarce: str
) -> None:
    facts = {"registers": registers, "shared_bytes": static}
    found = residency(launch(threads, dynamic), facts, SM_LIMITS[90])
    assert (found["blocks_per_sm"], found["limited_by"]) == (blocks, scarce)
    warps = -(-threads // 32)
    assert found["occupancy"] == pytest.approx(blocks * warps * 32 / 2048, abs=1e-3)


def test_architectures_by_name() -> None:
    assert limits_of("sm_90a") is SM_LIMITS[90]
    assert limits_of("sm_100f") is SM_LIMITS[100]
    assert limits_of("sm_75") is None
    assert limits_of("native") is None
