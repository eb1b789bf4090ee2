"""The eight models are equal to eager: train and inference, static and dynamic shapes, as full graphs (contract C3)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.matrix import CASES, run_case

BUDGET_S = 15.0
TARGETS = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One kernel cache, so that graphs which cases share are searched once."""
    return tmp_path_factory.mktemp("matrix") / "kernels"


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_model_is_equal_to_eager(name: str, target: str, kernels: Path) -> None:
    found = run_case(name, target, kernels, BUDGET_S)
    assert found["equal"], found["reason"]
    assert found["dynamic"] or found["regions"] > 0


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
