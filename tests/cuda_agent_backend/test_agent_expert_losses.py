"""The expert's Triton on a small task, in Triton's interpreter: as torch computes it, and with what is not finite."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHILD = """
import importlib.util, json, pathlib, sys
import torch
import torch.nn.functional as F
from benchmarks.agent_expert.losses import cross_entropy_of_pixels
from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import InputRef, Node, NodeRef, Task

def spec(dtype, *shape):
    return TensorSpec(dtype, shape, contiguous_stride(shape))

N, C, H, W = 2, 19, 20, 30
specs = (spec("int64", N, H, W), spec("float32", N, C, H, W), spec("float32", 1, C, 1, 1))
node = Node("aten.mean.dim", {"self": InputRef(1), "dim": (1, 2, 3)})  # only the specs are looked at
task = Task("cuda", specs, (node,), (NodeRef(0),), (spec("float32", N),))
x, targets, weights = torch.randn(N, C, H, W), torch.randint(C, (N, H, W)), torch.rand(C) + 0.5
targets[0, 0, :3] = -100
for special in (0.0, torch.nan, torch.inf, -torch.inf, 1e30):
    x[1, 3, 4, 5] = special
    want = F.cross_entropy(x.double(), targets, weights.double(), reduction="none").mean((1, 2))
    for number, version in enumerate(cross_entropy_of_pixels(task)):
        file = pathlib.Path(sys.argv[1], f"kernel{number}.py")
        file.write_text(version.source)
        found = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        plan = json.loads(version.plan)
        memory = {"in0": targets, "in1": x, "in2": weights}
        for buffer in plan["buffers"][3:]:
            memory[buffer["name"]] = torch.full(buffer["shape"], torch.nan)
        for step in plan["steps"]:
            kernel = getattr(module, step["kernel"])[tuple(step["grid"])]
            kernel(*(memory[a] for a in step["args"]), **step["constexprs"])
        torch.testing.assert_close(memory["out0"].double(), want, rtol=1e-6, atol=0, equal_nan=True)
print("all versions are right")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_losses_of_pixels_are_those_of_torch(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all versions are right" in done.stdout
