"""What the emulator keeps: libraries of kernels, shared by tests and processes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cuda_emulator
import pytest

ADD = """
extern "C" __global__ void add(float* out, int n) {
  const int i = threadIdx.x;
  if (i < n) out[i] += %d;
}
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of kernels of its own, beside the header that all share."""
    ready = cuda_emulator.prepared()
    for path in ready.iterdir():
        if path.is_file():
            (tmp_path / path.name).symlink_to(path)
    kernels = tmp_path / cuda_emulator.KERNELS
    kernels.mkdir()
    monkeypatch.setattr(cuda_emulator, "prepared", lambda: tmp_path)
    return kernels


def test_a_kernel_is_compiled_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cuda_emulator.build(ADD % 1, kept.parent / "first")
    monkeypatch.setattr(cuda_emulator, "_compile", lambda *_: pytest.fail("compiled again"))
    assert cuda_emulator.build(ADD % 1, kept.parent / "second") == first


def test_what_does_not_compile_is_not_kept(kept: Path) -> None:
    with pytest.raises(RuntimeError, match="nonsense"):
        cuda_emulator.build(ADD % 1 + "nonsense", kept.parent / "first")
    assert list(kept.iterdir()) == []


def test_several_may_compile_the_same_at_once(kept: Path) -> None:
    def build(number: int) -> Path:
        return cuda_emulator.build(ADD % 2, kept.parent / str(number))

    with ThreadPoolExecutor(3) as pool:
        (library,) = set(pool.map(build, range(3)))
    assert list(kept.iterdir()) == [library]


def test_kernels_that_were_not_used_lately_go_first(tmp_path: Path) -> None:
    for age in range(5):
        path = tmp_path / f"{age}.so"
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    cuda_emulator.discard_oldest(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.so", "1.so", "2.so"]
    cuda_emulator.discard_oldest(tmp_path, 3)
    assert len(list(tmp_path.iterdir())) == 3
