"""Libraries of Inductor that were cut off are made again, for good."""

from __future__ import annotations

import _ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent_backend.runtime.inductor_failures import is_whole, removed_cut_library

COMPILES_TWO = """
import os, torch
x = torch.linspace(-1, 1, 48).reshape(6, 8)
for model, disable in ((lambda x: x.sin().exp(), "0"), (lambda x: x.cos().exp(), "1")):
    os.environ["CUDA_AGENT_DISABLE"] = disable
    torch.testing.assert_close(torch.compile(model, backend="cuda_agent")(x), model(x))
"""
"""With our pass, and without."""


@pytest.fixture
def inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Torch's caches, on and empty."""
    folder = tmp_path / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    return folder


def test_a_library_whose_compiler_was_killed_is_made_again(tmp_path: Path, inductor: Path) -> None:
    """In processes of their own: one loads a library of one name once."""
    settings = {"CUDA_AGENT_CACHE_DIR": str(tmp_path / "kernels"), "CUDA_AGENT_SEARCH": "cached"}

    def compile_two() -> None:
        command = [sys.executable, "-c", COMPILES_TWO]
        env = {**os.environ, **settings}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]

    compile_two()
    for left in (b"", bytes(5000)):  # GNU's linker writes the header last
        libraries = sorted(inductor.rglob("*.main.so"))
        assert len(libraries) == 2 and all(map(is_whole, libraries))
        for library in libraries:
            library.write_bytes(left)
        compile_two()
    assert all(map(is_whole, libraries))


@pytest.mark.parametrize("left", [0, 40, 64, 5000, -1])
def test_what_lacks_its_end_is_not_whole(tmp_path: Path, left: int) -> None:
    library = tmp_path / "a.so"
    whole = Path(_ctypes.__file__).read_bytes()
    library.write_bytes(whole)
    assert is_whole(library)
    library.write_bytes(whole[:left])
    assert not is_whole(library)
    library.write_bytes(b"#" + whole[1:])
    assert not is_whole(library)


def test_nothing_but_a_cut_library_of_inductors_is_removed(tmp_path: Path, inductor: Path) -> None:
    inductor.mkdir()
    files = [tmp_path / "own.so", inductor / "other.so"]
    for file in files:
        file.write_bytes(b"short")
    assert not removed_cut_library(ImportError(f"{files[0]}: file too short"))
    assert not removed_cut_library(ImportError(f"{files[1]}: undefined symbol: f"))
    assert not removed_cut_library(ValueError(f"{files[1]}: file too short"))
    assert all(file.exists() for file in files)
    assert removed_cut_library(RuntimeError("around it")) is False
    around = RuntimeError("around it")
    around.__cause__ = OSError(f"{files[1]}: file too short")
    assert removed_cut_library(around)
    assert [file.exists() for file in files] == [True, False]


def test_a_library_that_another_process_has_made_again_stays(inductor: Path) -> None:
    inductor.mkdir()
    library = inductor / "whole.so"
    library.write_bytes(Path(_ctypes.__file__).read_bytes())
    assert removed_cut_library(ImportError(f"{library}: file too short"))
    assert is_whole(library)
