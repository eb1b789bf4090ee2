"""The tasks of `agent_search`: practice files at sizes for the target, each twice, so that one helps the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.options import Options
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.tools.capture import capture
from cuda_agent_backend.tools.load_model import BadTarget, import_file
from sandbox.task.task import Task

PRACTICE = Path(__file__).parent / "practice"


@dataclass(frozen=True)
class Subject:
    """A practice file and what its constants are instead, by name (-1: smaller); as they are where nothing is said."""

    file: str
    size: str
    constants: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Such as "single/gram_matrix-small"."""
        return f"{self.file}-{self.size}"


CPU: tuple[tuple[str, Mapping[str, tuple[int, int]]], ...] = (
    ("fused/bias_residual_layer_norm", {"ROWS": (500, 900), "FEATURES": (1100, 1600)}),
    ("fused/softmax_temperature_entropy", {"ROWS": (120, 300), "COLUMNS": (6000, 4000)}),
    ("fused/deviation_gate", {"BATCH": (2, 4), "CHANNELS": (40, 60), "HEIGHT": (75, 75)}),
    ("single/l2_normalize_columns", {"ROWS": (1500, 2500), "COLUMNS": (600, 800)}),
    ("single/variance_middle_dim", {"BATCH": (4, 6), "FEATURES": (300, 400), "LENGTH": (700, 900)}),
    ("fused/linear_gelu_scaled_residual", {"ROWS": (300, 500), "FEATURES": (500, 700)}),
    (
        "fused/instance_statistics_transfer",
        {"BATCH": (1, 2), "CHANNELS": (48, 48), "HEIGHT": (120, 100)},
    ),
    ("single/attention_plain", {"BATCH": (1, 2), "HEADS": (4, 4), "TOKENS": (401, 551)}),
)
CUDA = (
    ("fused/bias_residual_layer_norm", "ROWS"), ("fused/softmax_temperature_entropy", "ROWS"),
    ("fused/deviation_gate", "BATCH"), ("single/l2_normalize_columns", "ROWS"),
    ("single/variance_middle_dim", "BATCH"), ("fused/linear_gelu_scaled_residual", "ROWS"),
    ("single/gram_matrix", "ROWS"), ("single/attention_plain", "BATCH"),
    ("single/max_pool2d_ceil", "BATCH"), ("single/matmul_short_inner", "ROWS"),
)  # fmt: skip
"""Files at their own sizes, and again with one constant smaller."""
SCALE = 0.6
"""Of that constant."""


def subjects(target: str) -> tuple[Subject, ...]:
    """All subjects of a target."""
    if target == "cuda":
        pairs = [(Subject(f, "large"), Subject(f, "small", {name: -1})) for f, name in CUDA]
        return tuple(subject for pair in pairs for subject in pair)
    made = []
    for file, constants in CPU:
        for place, size in enumerate(("small", "large")):
            made.append(Subject(file, size, {n: sizes[place] for n, sizes in constants.items()}))
    return tuple(made)


def task_of(subject: Subject, target: str, options: Options) -> Task | str:
    """The subject's largest region as a task, or why there is none."""
    module = import_file(PRACTICE / f"{subject.file}.py")
    if isinstance(module, BadTarget):
        return module.reason
    for name, value in subject.constants.items():
        own = getattr(module, name)
        setattr(module, name, max(1, int(own * SCALE)) if value < 0 else value)
    torch.manual_seed(0)
    made: Any = module
    model = made.Model(*made.get_init_inputs()).eval().to(target)
    inputs = [x.to(target) if isinstance(x, torch.Tensor) else x for x in made.get_inputs()]
    found: list[tuple[int, Canonical]] = []
    for graph in capture(model, inputs, options):
        for region in partition(graph.module.graph):
            form = canonical(region.nodes, region.outputs, region.target)
            if not region.reason and isinstance(form, Canonical):
                found.append((region.moved, form))
    if not found:
        return "no region is offered"
    return max(found, key=lambda item: item[0])[1].task
