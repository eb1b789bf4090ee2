"""The eight models are equal to eager: train and inference, static and dynamic shapes, as full graphs (contract C3)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.matrix import CASES, run_case, summarise

BUDGET_S = 8.0
"""Seconds of search per graph: enough for a few kernels, as what is checked here is the models, not the search."""
HERE = [name for name, (_, train, dynamic) in CASES.items() if train != dynamic]
"""Every model in each way, but not in each pair of ways: what is left out takes a quarter of an hour on two cores,
and `python -m benchmarks.matrix` has them all."""
TARGETS = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One kernel cache, so that graphs which cases share are searched once."""
    return tmp_path_factory.mktemp("matrix") / "kernels"


@pytest.mark.slow(90)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", HERE)
def test_a_compiled_model_is_equal_to_eager(name: str, target: str, kernels: Path) -> None:
    found = run_case(name, target, kernels, BUDGET_S)
    assert found["equal"], found["reason"]
    assert found["dynamic"] or found["regions"] > 0


def test_a_case_that_raised_is_in_the_summary_as_a_difference() -> None:
    fine = {"equal": True, "error_ratio": 1.5, "as_inductor": (), "kernels": 2}
    found = summarise({"fine": fine, "raised": {"equal": False, "reason": "RuntimeError: no"}})
    assert found["different"] == {"raised": "RuntimeError: no"} and not found["all_equal"]
    assert (found["cases"], found["equal"], found["cases_with_kernels"]) == (2, 1, 1)
    assert found["worst_error_ratio"] == 1.5


@pytest.mark.parametrize("name", sorted({name.split("-")[0] for name in CASES}))
def test_the_models_are_small_finite_and_the_same_every_time(name: str) -> None:
    from examples.models import MODELS

    (first, inputs), (second, again) = MODELS[name](), MODELS[name]()
    assert all(torch.equal(a, b) for a, b in zip(inputs, again, strict=True))
    with torch.no_grad():
        out = first(*inputs)
        assert torch.equal(out, second(*again))
    assert out.dtype == torch.float32
    assert out.isfinite().all()
    assert sum(p.numel() for p in first.parameters()) < 5e6
