"""What was compiled with our kernels and saved runs in processes that import nothing of ours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deployed_kit as deployed
import pytest
import torch

from cuda_agent_backend import autoload
from cuda_agent_backend.runtime import kernels

MARK = deployed.MARK


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "_open", {})
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    yield
    torch._dynamo.reset()


def loads(what: str, *arguments: object, folder: Path, **environment: str) -> Any:
    site = deployed.installed(folder)
    return deployed.run_in_process(
        what, *arguments, site=site, module="loading_process", **environment
    )


def saved(folder: Path) -> Path:
    """A function compiled ahead of time, with our kernel in it."""
    deployed.fill(folder, deployed.model, *deployed.given())
    with torch.no_grad():
        made = deployed.compiled(fullgraph=True).aot_compile((deployed.given(), {}))
    made.save_compiled_function(str(folder / "function"))
    return folder / "function"


def test_importing_torch_imports_two_small_modules_and_its_compiler_brings_the_operators(
    tmp_path: Path,
) -> None:
    before, known, after, then = loads("idle", folder=tmp_path)
    assert before == [
        "cuda_agent_backend",
        "cuda_agent_backend.autoload",
        "cuda_agent_backend.weights",
    ]
    assert not known and then
    assert after == sorted([*before, "sandbox", "sandbox.operator_library"])


def test_a_function_compiled_ahead_of_time_runs_where_nothing_of_ours_is_imported(
    tmp_path: Path,
) -> None:
    assert loads("function", saved(tmp_path), folder=tmp_path) == MARK


def test_a_saved_function_whose_kernel_is_not_there_runs_its_operators(tmp_path: Path) -> None:
    path, empty = saved(tmp_path), str(tmp_path / "empty")
    assert loads("function", path, folder=tmp_path, CUDA_AGENT_CACHE_DIR=empty) == 0.0


def test_without_torchs_autoload_operators_are_registered_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert loads("idle", folder=tmp_path, **without) == [[], False, [], False]
    autoload.register_operators()
    assert hasattr(torch.ops.cuda_agent, "run_32_8")
