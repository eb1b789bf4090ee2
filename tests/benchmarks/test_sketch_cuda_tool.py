"""The tool that times all schedules of a case builds schedules of different sketches into one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.products import convolution
from benchmarks.sketch_cuda_build import build
from benchmarks.sketch_cuda_subjects import Subject
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.plan import Plan


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
def test_schedules_of_different_sketches_are_built_together(tmp_path: Path) -> None:
    case = convolution("small", (2, 32, 4, 8, 8), 32, 3, transposed=True, stride=2, padding=1)
    found = build(Subject(case.name, case.function, case.make), tmp_path, 6, False)
    assert not found.problem and len(found.variants) >= 4
    sketches = {json.loads(variant.schedule)[0]["sketch"] for variant in found.variants}
    assert {"contract", "phases"} <= sketches
    kernels = [
        {launch.kernel for launch in Plan.from_json(variant.plan).launches()}
        for variant in found.variants
    ]
    assert len(set().union(*kernels)) == sum(map(len, kernels))
