"""Models whose kernels show that they ran, for tests in processes and threads of all kinds.

The kernel of `exp` adds `MARK`; what a compiled model gives is eager's result and the mark.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import splice_kit as kit
import torch
from torch import Tensor

from cuda_agent_backend.runtime.child_process import child_environment
from kernel_cache import Record

MARK = 1000.0
TRUST = {
    "cuda_agent.search": "cached",
    "cuda_agent.min_bytes": 0,
    "cuda_agent.acceptance": "trust",
}
SIZES = (6, 8, 10)


def model(x: Tensor, w: Tensor) -> Tensor:
    """A product, and behind it the region that has a kernel."""
    return torch.exp(x @ w)


def given(size: int = 6) -> tuple[Tensor, Tensor]:
    """Inputs of the model, [size, 8] and [8, 4]."""
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 8, generator=generator), torch.randn(8, 4, generator=generator) / 8


def compiled(function: Callable[..., Any] = model, **how: Any) -> Any:
    """As a user compiles, by the backend's name, with the kernels that are there."""
    return torch.compile(function, backend="cuda_agent", options=TRUST, **how)


def fill(folder: Path, function: Callable[..., Any] = model, *inputs: Tensor) -> list[Record]:
    """Keep a kernel that adds the mark for each `exp` of a function, in the cache that the environment names."""
    options = kit.options_in(folder, cache_dir=os.environ["CUDA_AGENT_CACHE_DIR"])
    made = []
    for given_now in [inputs] if inputs else map(given, SIZES):
        seen = kit.Capture()
        with torch._inductor.config.patch(force_disable_caches=True), torch.no_grad():
            torch.compile(function, backend=kit.backend_for(options, seen))(*given_now)
        torch._dynamo.reset()
        (form,) = seen.forms
        body = kit.elementwise(form.task, f"std::exp(a) + {MARK}f")
        made.append(kit.promote(kit.cache_of(options), form.task, body, folder))
    return made


def marked(result: Tensor, expected: Tensor) -> bool:
    """Whether a result is what eager gives, by way of our kernel."""
    return torch.allclose(result, expected + MARK, rtol=1e-6, atol=1e-3)


def entry_points() -> dict[str, list[str]]:
    """Those that `setup.py` declares, by group."""
    tree = ast.parse((Path(__file__).parents[2] / "setup.py").read_text())
    keywords = [k for node in ast.walk(tree) if isinstance(node, ast.Call) for k in node.keywords]
    found: dict[str, list[str]] = next(
        ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg == "entry_points"
    )
    return found


def installed(folder: Path) -> Path:
    """A folder for `PYTHONPATH` in which the package counts as installed with the entry points of `setup.py`."""
    lines = [f"[{group}]\n" + "\n".join(names) for group, names in entry_points().items()]
    made = folder / "site" / "cuda_agent-0.1.0.dist-info"
    made.mkdir(parents=True, exist_ok=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: cuda_agent\nVersion: 0.1.0\n")
    (made / "entry_points.txt").write_text("\n\n".join(lines))
    return made.parent


def run_in_process(
    what: str, *arguments: object, site: Path | None = None, module: str = "deployed_process",
    **environment: str,
) -> Any:  # fmt: skip
    """What a function of a module gives in a fresh process. site: see `installed`."""
    variables = {**child_environment(), **environment}
    paths = [str(Path(__file__).parent), *([str(site)] if site else []), variables["PYTHONPATH"]]
    variables["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [sys.executable, "-m", module, what, *map(str, arguments)],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=570,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-500:]} {done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])
