"""What compute-sanitizer's racecheck takes for a race and is none, so that other tests may leave it out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import test_triangular
from sanitizer_kit import is_misread, relays

from cuda_agent_backend.codegen import api
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate
from sandbox.sanitizer.tool import ToolReport, find_sanitizer

SOURCE = r"""
#include <cstdio>
__device__ void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}
__device__ void announce(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

// One half of the block writes tiles, the other reads them; two tiles by turns. A tile is written again after all have
// read it, and read after all have written it, so there is no race.
__global__ void relay(float* out, int count) {
  __shared__ float tiles[2][128];
  const int own = threadIdx.x % 128;
  if (threadIdx.x < 128) {
    for (int n = 0; n < count; ++n) {
      if (OWN_BARRIER) meet(12, 128);
      if (n >= 2) meet(7 + n % 2, 256);
      tiles[n % 2][own] = n + own;
      announce(1 + n % 2, 256);
    }
    return;
  }
  float sum = 0;
  for (int n = 0; n < count; ++n) {
    meet(1 + n % 2, 256);
    sum += tiles[n % 2][127 - own];
    if (n + 2 < count) announce(7 + n % 2, 256);
  }
  out[own] = sum;
}

int main() {
  float *out, found[128];
  cudaMalloc(&out, sizeof(found));
  relay<<<1, 256>>>(out, 5);
  cudaMemcpy(found, out, sizeof(found), cudaMemcpyDeviceToHost);
  int wrong = 0;
  for (int i = 0; i < 128; ++i) wrong += found[i] != 10 + 5 * (127 - i);
  printf("%d wrong\n", wrong);
}
"""


def races(folder: Path, own_barrier: bool) -> int:
    """How many races the tool says that the program has, whose results are right."""
    cuda, tool = find_cuda(), find_sanitizer()
    if isinstance(cuda, Missing) or cuda.kind != "nvcc" or isinstance(tool, Missing):
        pytest.skip("needs nvcc and compute-sanitizer")
    (folder / "relay.cu").write_text(SOURCE)
    program = folder / "relay"
    flags = ["-arch=native", "-O3", f"-DOWN_BARRIER={int(own_barrier)}"]
    subprocess.run([str(cuda.path), *flags, "-o", str(program), "relay.cu"], check=True, cwd=folder)
    done = subprocess.run(
        [str(tool), "--tool", "racecheck", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "0 wrong" in done.stdout.splitlines(), done.stdout
    summary = re.search(r"RACECHECK SUMMARY: .*\((\d+) error", done.stdout)
    assert summary, done.stdout
    return int(summary.group(1))


@pytest.mark.gpu
def test_a_barrier_of_one_half_of_a_block_makes_racecheck_forget_the_others(tmp_path: Path) -> None:
    """Once this fails, the tool has learned it: `is_misread` can go."""
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    assert races(tmp_path / "without", own_barrier=False) == 0
    assert races(tmp_path / "with", own_barrier=True) > 0


def source_of(**tiles: Any) -> str:
    it = test_triangular.case("lower")
    made = api.generate(it.analysis, test_triangular.with_tiles(it, **tiles))
    assert isinstance(made, Candidate), made
    return made.source


def test_only_races_of_that_form_are_left_out() -> None:
    source = source_of(**test_triangular.GROUP)
    assert relays(source) == {"k1"}
    for other in (
        test_triangular.WARPS,
        test_triangular.REGISTERS,
        {**test_triangular.GROUP, "tile_m": 128},
    ):
        assert not relays(source_of(**other))
    race = "Error: Race reported between Write access at {}+0x39b0\nand Write access at k1+0x10 [2 hazards]"
    for tool, detail, misread in (
        ("racecheck", race.format("k1"), True),
        ("racecheck", race.format("k1_b_note"), False),
        ("racecheck", "", False),
        ("memcheck", race.format("k1"), False),
    ):
        assert is_misread(ToolReport(tool, "errors", detail), source) == misread
