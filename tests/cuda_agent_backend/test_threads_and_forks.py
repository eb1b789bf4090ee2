"""Compiled models in threads, forked children and workers of data loaders give what eager gives, with our kernels."""

from collections.abc import Iterator
from pathlib import Path

import deployed_kit as deployed
import pytest
import torch

from cuda_agent_backend.runtime import kernels

WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""Torch itself uses no GPU in a child that is forked after its parent did."""


@pytest.fixture(autouse=True)
def _filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "_open", {})
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    deployed.fill(tmp_path)
    yield
    torch._dynamo.reset()


def test_four_threads_whose_first_calls_meet_all_get_their_models() -> None:
    assert deployed.run_in_process("threads", 4) == ["right"] * 4


def test_forked_children_run_and_compile_models() -> None:
    assert deployed.run_in_process("fork", **WITHOUT_GPU) == [0, 0, 0]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_a_data_loader_call_compiled_functions(context: str) -> None:
    assert deployed.run_in_process("workers", context, **WITHOUT_GPU) == [True] * 9
