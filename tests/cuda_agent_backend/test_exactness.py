"""Products of parts for one: which kernels are as coarse as one that was wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from episode_kit import PLAN, TASK, verdict

from cuda_agent_backend.agent.tools.kernel_tools import KernelWork
from cuda_agent_backend.codegen.ir.multiply_precision import EXACT
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.multiply_precision import as_coarse, products_of
from sandbox.plan.candidate import Candidate

ROW = {"sketch": "row", "team": 32}
COARSE = {"sketch": "contract", "products": 1}
FINER = {"sketch": "contract", "products": 3}
BOX = {"sketch": "halo", "rows": 4}


@pytest.mark.parametrize(
    ("kernels", "products"),
    [
        ([ROW], 0),
        ([COARSE], 1),
        ([BOX], EXACT),
        ([{**BOX, "products": 3}], 3),
        ([ROW, FINER, COARSE], 1),
        ([ROW, FINER, BOX], 3),
    ],
)
def test_the_coarsest_kernel_says_how_exact_a_schedule_is(
    kernels: list[dict[str, int | str]], products: int
) -> None:
    assert products_of(Schedule.of(*kernels)) == products


@pytest.mark.parametrize(
    ("wrong", "coarse"), [(1, {"a"}), (3, {"a", "b"}), (6, set()), (0, set()), (8, set())]
)
def test_what_is_as_coarse_as_a_wrong_one_is_out_where_something_is_finer(
    wrong: int, coarse: set[str]
) -> None:
    assert as_coarse({"a": 1, "b": 3, "c": 6, "row": 0}, wrong) == coarse


def test_nothing_is_as_coarse_where_there_is_nothing() -> None:
    assert as_coarse({}, 1) == set()


def made(*kernels: dict[str, int | str], source: str = "") -> Candidate:
    label = Schedule.of(*kernels).to_json() if kernels else "by hand"
    return Candidate("cpu", "c++", source or label, PLAN, "policy", label)


def test_what_no_verdict_speaks_against_is_promising() -> None:
    work = KernelWork(TASK, None)  # type: ignore[arg-type]
    work.candidates = {
        "coarse": made(COARSE),
        "as coarse": made({**COARSE, "tile_m": 64}),
        "finer": made(FINER),
        "box": made(BOX),
        "row": made(ROW),
        "own": made(source="int x;"),
    }
    work.profiles = {name: 1.0 + place for place, name in enumerate(work.candidates)}
    assert work.promising() == work.profiles
    found = verdict(work.candidates["coarse"])
    work.verdicts = {"coarse": replace(found, status="wrong"), "row": replace(found, status="wins")}
    assert set(work.promising()) == {"finer", "box", "row", "own"}
    work.verdicts["own"] = replace(found, status="wrong")  # says nothing of its products
    work.verdicts["finer"] = replace(found, status="crashed")  # nor of others
    assert set(work.promising()) == {"box", "row"}
