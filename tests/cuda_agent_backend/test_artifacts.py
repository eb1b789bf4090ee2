"""What was compiled with our kernels and saved runs in processes that import nothing of ours."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deployed_kit as deployed
import pytest
import splice_kit as kit
import torch
from loading_process import Net
from torch.torch_version import TorchVersion

from cuda_agent_backend import autoload
from cuda_agent_backend.runtime import kernels
from cuda_agent_backend.tools.export import inductor_configs

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
    if not hasattr(deployed.compiled(), "aot_compile"):
        pytest.skip("this torch compiles no functions ahead of time")
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


@pytest.mark.slow
@pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.13.dev0",
    reason="torch 2.11 with CUDA 13 ended by SIGSEGV while it loaded the package; why is not known",
)
def test_a_package_of_an_exported_program_runs_our_kernels_and_says_where_they_are_missing(
    tmp_path: Path,
) -> None:
    deployed.fill(tmp_path, deployed.model, *deployed.given())
    configs = inductor_configs(options=deployed.TRUST)
    with torch.no_grad():
        program = torch.export.export(Net().eval(), (deployed.given()[0],))
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "net.pt2"), inductor_configs=configs
        )
    assert configs["post_grad_custom_post_pass"].reports[0].count("hit") == 1
    assert loads("package", path, folder=tmp_path) == MARK
    said = loads("why", "package", path, folder=tmp_path, CUDA_AGENT_CACHE_DIR=str(tmp_path / "no"))
    assert "Set CUDA_AGENT_CACHE_DIR" in said


@pytest.mark.slow
def test_what_torch_compiled_before_is_loaded_with_our_kernels_in_a_new_process(
    tmp_path: Path,
) -> None:
    (record, *_) = deployed.fill(tmp_path, deployed.model, *deployed.given())
    first = deployed.run_in_process("precompiled", str(tmp_path / "artifacts"))
    again = deployed.run_in_process("precompiled", "")
    assert first == [MARK, 0] and again == [MARK, 1]
    elsewhere = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "elsewhere")}
    carried = deployed.run_in_process("carried", str(tmp_path / "artifacts"), **elsewhere)
    assert carried == [MARK, 1]
    options = kit.options_in(tmp_path, cache_dir=os.environ["CUDA_AGENT_CACHE_DIR"])
    assert kit.cache_of(options).remove(record.key)
    assert deployed.run_in_process("precompiled", "") == [0.0, 1]


def test_without_torchs_autoload_operators_are_registered_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert loads("idle", folder=tmp_path, **without) == [[], False, [], False]
    autoload.register_operators()
    assert hasattr(torch.ops.cuda_agent, "run_32_8")
