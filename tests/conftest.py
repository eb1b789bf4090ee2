"""What all tests share: hardware marks that skip with a reason, and an environment of their own."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")

MIN_CAPABILITY = (8, 0)
SET_BY_OTHERS = ("PYTEST_CURRENT_TEST", "_TORCHINDUCTOR_", "TORCHINDUCTOR_", "TRITON_", "KMP_")
"""How variables begin that pytest, torch and its libraries set by themselves."""
COLLECTED = pytest.StashKey[list[str]]()
"""The names of the tests that were found, before any choice among them."""
ALONE = pytest.StashKey[list[str]]()
"""Those of them that are marked so."""


def _sleep_while_waiting() -> None:
    """Have torch's threads sleep while they wait, where other workers want the cores: spinning costs a seventh.

    The library reads this once. Processes that tests start do not inherit it, as they may measure.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_WAIT_POLICY", "passive")
        import torch  # noqa: F401


if "PYTEST_XDIST_WORKER" in os.environ:
    _sleep_while_waiting()


def _missing_gpu(count: int) -> str | None:
    """Why tests that need ``count`` GPUs cannot run here; None if they can."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    if torch.cuda.device_count() < count:
        return f"{torch.cuda.device_count()} CUDA device(s), {count} needed"
    capability = torch.cuda.get_device_capability()
    if capability < MIN_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]}, 8.0 needed"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what was found: `test_names` compares it with a list. The longest tests come first.

    Where several workers share the tests, none is then left alone with a test of minutes at the end: one has the slow
    tests, which mostly wait, beside others that compute, and gives away its last ones.
    """
    config.stash[COLLECTED] = [item.nodeid for item in items]
    config.stash[ALONE] = [item.nodeid for item in items if item.get_closest_marker("alone")]
    items.sort(key=_seconds, reverse=True)  # the order is kept else


def _seconds(item: pytest.Item) -> float:
    """What a slow test says that it takes, or a minute; no time for others."""
    mark = item.get_closest_marker("slow")
    return float(mark.args[0] if mark.args else 60.0) if mark else 0.0


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run, saying why."""
    for mark, count in (("gpu", 1), ("multi_gpu", 2)):
        if item.get_closest_marker(mark) and (reason := _missing_gpu(count)):
            pytest.skip(reason)


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> list[str]:
    """The names of all tests; skips where only a part of the folders was asked for."""
    config = request.config
    if config.args != config.getini("testpaths"):
        pytest.skip("only a part of the tests was collected")
    return config.stash[COLLECTED]


@pytest.fixture
def collected_alone(collected: list[str], request: pytest.FixtureRequest) -> list[str]:
    """The names of all tests that run alone; skips as `collected` does."""
    return request.config.stash[ALONE]


@pytest.fixture(scope="session")
def native_dir() -> Path:
    """One folder for all that is built with ninja at first use, kept from one test run to the next."""
    return Path(__file__).parents[1] / "build" / "native"


def _shared() -> dict[str, Any]:
    """What all tests of a process meet."""
    import torch

    return {
        "threads of torch": torch.get_num_threads(),
        "dtype of torch": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "frozen flags of torch": torch.backends.flags_frozen(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "working directory": Path.cwd(),
        "temporary directory": tempfile.tempdir,
        "SIGINT": signal.getsignal(signal.SIGINT),
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        **{name: value for name, value in os.environ.items() if not name.startswith(SET_BY_OTHERS)},
    }


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """No test changes for good what others of its process meet: which others those are differs from run to run."""
    before = _shared()
    yield
    after = _shared()
    changed = {
        name: after.get(name) for name in before | after if before.get(name) != after.get(name)
    }
    assert not changed


@pytest.fixture(autouse=True)
def _own_environment(
    _process_as_it_was: None, tmp_path: Path, native_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No CUDA_AGENT_* variable of the caller reaches a test, and no test reaches the caller's kernel cache."""
    for name in [name for name in os.environ if name.startswith("CUDA_AGENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_AGENT_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("CUDA_AGENT_NATIVE_DIR", str(native_dir))
    monkeypatch.setenv("CUDA_AGENT_PROGRESS", "off")


@pytest.fixture
def exact_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's float32 in float32, as a CPU's."""
    import torch

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
