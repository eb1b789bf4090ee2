"""The practice set: every task has its form, runs on fake tensors, fits in memory, and is there once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from kit.task_files import Bounds, faults_of_run, faults_of_source, loaded, model_of, name_of

PRACTICE = Path(__file__).parents[2] / "benchmarks" / "practice"
TASKS = sorted(PRACTICE.glob("*/*.py"))
LEAST = {"single": 70, "fused": 40, "networks": 20}
LEAST_IN_ALL = 130
BOUNDS = Bounds(in_all=4_000_000_000, an_input=300_000_000)


@pytest.mark.parametrize("path", TASKS, ids=name_of)
def test_every_task_has_the_form_of_one(path: Path) -> None:
    assert list(faults_of_source(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", TASKS, ids=name_of)
def test_every_task_runs_on_fake_tensors_within_its_bounds(path: Path) -> None:
    assert list(faults_of_run(loaded(path), BOUNDS)) == []


def test_there_are_enough_tasks_of_each_kind() -> None:
    counts = Counter(path.parent.name for path in TASKS)
    assert counts.keys() == LEAST.keys()
    assert all(counts[name] >= least for name, least in LEAST.items()), counts
    assert len(TASKS) >= LEAST_IN_ALL


def test_no_two_tasks_have_the_same_model_or_the_same_docstring() -> None:
    for part in (model_of, lambda text: ast.get_docstring(ast.parse(text))):
        owners: dict[str | None, list[str]] = {}
        for path in TASKS:
            owners.setdefault(part(path.read_text(encoding="utf-8")), []).append(name_of(path))
        assert [names for names in owners.values() if len(names) > 1] == []


def test_the_readme_counts_every_task() -> None:
    text = (PRACTICE / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| [^|]+ \| (\d+) \|$", text, re.MULTILINE)
    told: Counter[str] = Counter()
    for folder, number in rows:
        told[folder] += int(number)
    assert told == Counter(path.parent.name for path in TASKS)


GOOD = '''"""Doubles rows."""

import torch
from torch import Tensor, nn

ROWS = 4


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, 3)]


def get_init_inputs() -> list[object]:
    return []
'''

SPOILED = {
    "docstring of one line": ('"""Doubles rows."""', ""),
    "no {'get_init_inputs'}": ("def get_init_inputs", "def get_inits"),
    "constants not at the top": ("    return []\n", "    return []\n\n\nLATE = 3\n"),
    "without capitals": ("ROWS = 4", "ROWS = 4\nrows = 4"),
    "computed": ("ROWS = 4", "ROWS = min(4, 5)"),
    "imports os": ("import torch\n", "import os\nimport torch\n"),
    "uses manual_seed": ("    return [torch", "    torch.manual_seed(1)\n    return [torch"),
    "draws random numbers": ("2 * x", "x + torch.randn_like(x)"),
    "uses dropout": ("2 * x", "nn.functional.dropout(x)"),
    "changes its inputs": ("2 * x", "x.mul_(2)"),
    "not drawn": ("torch.randn", "torch.ones"),
    "an input of torch.float64": ("(ROWS, 3)", "(ROWS, 3, dtype=torch.float64)"),
    "not plain": ("(ROWS, 3)", "(ROWS, 3).T"),
    "an input of 1200000000 bytes": ("ROWS = 4", "ROWS = 100_000_000"),
    "4800000012 bytes": ("2 * x", "x[:1].repeat(400_000_000 - 3, 1)"),
    "an output of shape": ("2 * x", "x[:0]"),
    "an output of torch.bool": ("2 * x", "x > 0"),
    "no tensors": ("2 * x", "3, 4"),
    "no plain values": ("return []", "return [None]"),
    "training mode": (
        "    def forward",
        "    def __init__(self) -> None:\n        super().__init__()\n"
        "        self.norm = nn.BatchNorm1d(3)\n\n    def forward",
    ),
}


def faults(text: str, folder: Path) -> list[str]:
    path = folder / "task.py"
    path.write_text(text)
    found = list(faults_of_source(text))
    try:
        found += faults_of_run(loaded(path), BOUNDS)
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


def test_a_good_task_has_no_faults(tmp_path: Path) -> None:
    assert faults(GOOD, tmp_path) == []


@pytest.mark.parametrize("fault", SPOILED)
def test_a_spoiled_task_is_found_out(fault: str, tmp_path: Path) -> None:
    before, after = SPOILED[fault]
    assert before in GOOD
    assert any(fault in found for found in faults(GOOD.replace(before, after), tmp_path))


@pytest.mark.parametrize("value", ["x.nonzero()", "x[: int(x.sum())]", "x.sum().item() * x"])
def test_sizes_and_values_that_depend_on_data_do_not_pass(value: str, tmp_path: Path) -> None:
    found = faults(GOOD.replace("2 * x", value), tmp_path)
    assert any("DataDependent" in fault or "DynamicOutputShape" in fault for fault in found), found


def test_models_that_differ_in_words_only_are_the_same() -> None:
    told = GOOD.replace("(nn.Module):\n", '(nn.Module):\n    """Twice."""\n\n')
    assert told != GOOD and model_of(told) == model_of(GOOD)
    assert model_of(GOOD.replace("2 * x", "3 * x")) != model_of(GOOD)
