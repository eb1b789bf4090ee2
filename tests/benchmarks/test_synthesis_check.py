"""The independent look at a set finds what no row may be, whoever made the row."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import confined, synthesis_check, synthesis_results
from benchmarks.synthesis_check import (
    KINDS,
    by_law,
    faults,
    kind_of,
    to_look_at,
    twins,
    unused_operators,
)
from benchmarks.synthesis_graph import digest, recorded
from benchmarks.synthesis_look import look

PROGRAM = """import torch
import torch.nn.functional as F
from torch import nn

DTYPE = torch.float32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x, y):
        {lines}


def get_inputs():
    return [torch.randn(6, 12, dtype=DTYPE), torch.randn(6, 8, dtype=DTYPE)]


def get_init_inputs():
    return []
"""
GOOD = "return torch.tanh(self.layer1(x)) * self.scale + F.gelu(y)"
PLANTED = {
    "does not run": "raise ValueError('no')",
    "unused operator": "torch.tanh(x); return self.layer1(x) * self.scale + F.gelu(y)",
    "stochastic": f"{GOOD} + F.dropout(y, 0.5)",
    "not finite": f"{GOOD} + torch.log(-y.abs())",
    "constant": f"return ({GOOD[7:]}) * 0 + 1",
    "saturated": f"return torch.relu({GOOD[7:]} - 2.5 + 3 * (x[:1, :1] > 9))",
    "independent of the inputs": f"return ({GOOD[7:]}) * 1e-7 + self.scale.cumsum(0)",
    "independent of an input": "return torch.tanh(self.layer1(x)) * self.scale + F.gelu(self.scale)",
    "independent of a weight": "return F.softmax(torch.tanh(self.layer1(x)) + self.scale.sum(), 1) + F.gelu(y)",
}


def row(lines: str = GOOD, **other: Any) -> dict[str, Any]:
    ops = ["nn.Linear", "torch.tanh", "F.gelu"]
    code = PROGRAM.format(lines=lines.replace("; ", "\n        "))
    return {"ops": ops, "code": code, "dtype": "float32", "training": False, **other}


def looked_at(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    try:
        return look({**found, "device": "cpu", "digests": False, "last": True}, folder)
    except Exception as error:
        return {"failed": str(error)}


def test_nothing_is_found_of_a_good_row(tmp_path: Path) -> None:
    facts = looked_at(row(), tmp_path)
    assert faults(row(), facts) == {}
    assert facts["float64"] and facts["used"]["tanh"] == 1 and facts["used"]["Linear"] == 1


def test_a_function_goes_by_its_own_name_and_an_input_that_is_hardly_looked_at_is_found(
    tmp_path: Path,
) -> None:
    """Torch finds mm as spmm too. A step of numbers that are never zero does not read its second input."""
    lines = "return torch.heaviside(torch.mm(self.layer1(x), y.t()), y.sum() * 0 + 0.5) + x.sum() * self.scale.sum()"
    found = looked_at(row(lines), tmp_path)
    assert found["used"]["mm"] == 1 and found["used"]["heaviside"] == 1
    step = row("return torch.heaviside(self.layer1(x), y) * self.scale + torch.tanh(x[:, :8])")
    assert "independent of an input" in faults(step, looked_at(step, tmp_path))


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_row_is_found(tmp_path: Path, kind: str) -> None:
    planted = row(PLANTED[kind])
    found = faults(planted, looked_at(planted, tmp_path))
    assert kind in found, found


def test_a_row_whose_gradients_are_all_zero_is_found(tmp_path: Path) -> None:
    lines = "return torch.round(torch.tanh(self.layer1(x)) * self.scale * 8 + F.gelu(y))"
    planted = row(lines, training=True)
    assert faults(planted, looked_at(planted, tmp_path))["constant"].startswith("every gradient")


def test_a_weight_that_a_normalization_cancels_is_found_in_half_precision_too(
    tmp_path: Path,
) -> None:
    lines = "return F.layer_norm(torch.tanh(self.layer1(x)) + self.scale.mean(), [8]) + F.gelu(y)"
    planted = row(lines, dtype="bfloat16")
    planted["code"] = (
        planted["code"]
        .replace("float32", "bfloat16")
        .replace("torch.ones(8))", "torch.ones(8))\n        self.to(DTYPE)")
    )
    found = faults(planted, looked_at(planted, tmp_path))
    assert found == {"independent of a weight": "scale"}


def test_the_bias_of_keys_is_no_fault() -> None:
    assert by_law("layer.self.key.bias", {"ops": ["transformers.bert.BertLayer"]})
    assert not by_law("layer.self.key.bias", {"ops": ["nn.Linear"]})
    assert not by_law("layer.monkey.bias", {"ops": ["transformers.bert.BertLayer"]})
    assert not by_law("layer.self.query.bias", {"ops": ["transformers.bert.BertLayer"]})


def test_an_operator_that_is_declared_twice_has_to_be_called_twice() -> None:
    assert unused_operators(["F.gelu", "F.gelu"], {"gelu": 1}) == ["gelu"]
    assert unused_operators(["torch.linalg.vector_norm"], {"linalg_vector_norm": 1}) == []


@pytest.mark.parametrize(
    ("op", "other"),
    [
        ("torch.norm", "layer_norm"),
        ("torch.norm", "linalg_norm"),
        ("F.relu", "leaky_relu"),
        ("torch.mul", "matmul_mul"),
    ],
)
def test_an_operator_with_a_longer_name_is_another_one(op: str, other: str) -> None:
    name = op.rpartition(".")[2]
    assert unused_operators([op], {other: 3}) == [name]
    assert unused_operators([op], {name: 1}) == []
    assert unused_operators(["F.logsigmoid"], {"log_sigmoid": 1}) == []


def test_what_a_module_of_a_library_calls_is_not_what_the_program_calls(tmp_path: Path) -> None:
    made = "return nn.GELU()(y) * self.scale + torch.tanh(self.layer1(x))"
    hidden = row(made, ops=["nn.GELU", "F.gelu"])
    hidden["code"] = hidden["code"].replace(
        "self.layer1 =", "self.acts = nn.Sequential(nn.GELU())\n        self.layer1 ="
    )
    facts = looked_at(hidden, tmp_path)
    assert "gelu" not in facts["used"] and "linear" not in facts["used"]
    assert faults(hidden, facts) == {"unused operator": "gelu"}
    inside = {**hidden, "code": hidden["code"].replace("nn.GELU()(y)", "self.acts(y)")}
    facts = looked_at(inside, tmp_path)
    assert facts["used"]["GELU"] == facts["used"]["Sequential"] == 1
    assert faults(inside, facts) == {"unused operator": "gelu"}
    caught = "try: b = self.layer1(y); except RuntimeError: b = F.gelu(y); "
    caught += "return torch.tanh(self.layer1(x)) * self.scale + b"
    assert faults(row(caught), looked_at(row(caught), tmp_path)) == {}


def test_duplicates_are_found_under_other_names_and_sizes_and_orders(tmp_path: Path) -> None:
    swapped = "b = F.gelu(y); a = torch.tanh(self.layer1(x)); return a * self.scale + b"
    wider = row()["code"].replace("8", "16")
    other = "return torch.sigmoid(self.layer1(x)) * self.scale + F.gelu(y)"
    rows = [row(), row(swapped), {**row(), "code": wider}, row(other), row(), row(training=True)]
    facts = {f"row {n}": looked_at(one, tmp_path) for n, one in enumerate(rows)}
    found = twins(rows, facts, ["row 0", "row 1", "row 2", "row 3", "row 5"])
    assert found["row 0"] == {"duplicate": "like row 4, row 5"}
    assert found["row 1"] == {"duplicate": "like row 0, row 4"}
    assert set(found["row 2"]) == {"near duplicate"}
    assert "row 3" not in found and "row 4" not in found


def test_what_chooses_the_computation_counts_for_near_duplicates_and_numbers_do_not(
    tmp_path: Path,
) -> None:
    lines = "return F.{act} * self.scale + torch.tanh(self.layer1(x))"
    acts = ("gelu(y)", "gelu(y, approximate='tanh')", "elu(y, 0.5)", "elu(y, 0.75)", "elu(y)")
    shapes = [looked_at(row(lines.format(act=act)), tmp_path)["shape"] for act in acts]
    assert shapes[0] != shapes[1]
    assert shapes[2] == shapes[3] == shapes[4]
    added = [
        looked_at(row(f"return torch.add(self.layer1(x), y{alpha}) * self.scale"), tmp_path)
        for alpha in ("", ", alpha=2")
    ]
    assert added[0]["shape"] == added[1]["shape"] and added[0]["exact"] != added[1]["exact"]


def test_to_read_one_input_twice_is_not_to_read_two() -> None:
    class Product(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a * (b + 1)

    x, y = torch.randn(2, 4, 4)
    once, other, both = (
        digest(*recorded(Product(), given), numbers=False) for given in ([x, x], [y, y], [x, y])
    )
    assert once == other != both


def test_a_function_may_be_like_a_module_of_its_name() -> None:
    alike = [
        row(ops=["nn.Linear", "F.leaky_relu"]),
        row(ops=["nn.LeakyReLU", "F.linear", "F.linear"]),
    ]
    assert kind_of(alike[0]) == kind_of(alike[1]) != kind_of(row(ops=["nn.Linear", "F.relu"]))
    products = [row(ops=[f"torch.{name}"]) for name in ("mm", "matmul", "bmm")]
    assert len(set(map(kind_of, products))) == 1
    assert to_look_at(alike, 1, 1)[1]


def test_rows_that_may_be_alike_are_looked_at_with_those_drawn() -> None:
    rows = [row(), row(), row(dtype="float16"), row(ops=["F.gelu"])]
    for seed in range(8):
        drawn, others = to_look_at(rows, 1, seed)
        kind = kind_of(rows[drawn[0]])
        assert others == [
            n for n, one in enumerate(rows) if kind_of(one) == kind and n not in drawn
        ]


def arguments(**other: Any) -> argparse.Namespace:
    given = {"draw": 4, "seed": 1, "jobs": 1, "device": "cpu", "out": None, "limit": float("inf")}
    return argparse.Namespace(**{**given, **other})


def test_a_check_that_was_cut_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(id="a"), row(PLANTED["constant"], id="b"), row(PLANTED["stochastic"], id="c")]
    rows = [{**one, "families": ["linear"], "device_name": "cpu"} for one in rows]
    assert synthesis_check.checked(rows, arguments(out=tmp_path, limit=0.0)) is None
    (first,) = synthesis_results.kept(tmp_path / synthesis_check.NAME)
    asked = list[str]()
    each = confined.each

    def noted(items: Any, *more: Any, **how: Any) -> Any:
        asked.extend(name for name, _ in items)
        return each(items, *more, **how)

    monkeypatch.setattr(confined, "each", noted)
    sample = synthesis_check.checked(rows, arguments(out=tmp_path))
    assert sample is not None and len(asked) == 2 and first not in asked
    assert sample["found"]["constant"] == sample["found"]["stochastic"] == 1, sample["wrong"]


Each = Callable[..., Iterator[tuple[str, dict[str, Any]]]]


def answers(asked: list[tuple[str, int, bool]], why: str, enough: int) -> Each:
    """In place of `confined.each`: row 1 fails with more jobs than are few enough for it."""

    def each(items: Any, work: Any, *, jobs: int, **how: Any) -> Any:
        for name, value in items:
            asked.append((name, jobs, value["last"]))
            failed = jobs > enough and name.startswith("row 1")
            yield name, {"failed": why} if failed else {"fine": True}

    return each


FULL = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def test_a_row_that_found_no_memory_beside_others_is_looked_at_with_few_and_then_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[str, int, bool]]()
    monkeypatch.setattr(confined, "each", answers(asked, FULL, 1))
    path = tmp_path / synthesis_check.NAME
    found = synthesis_check.answered([row(), row()], (0, 1), (), arguments(jobs=8), path)
    assert found == {"row 0": {"fine": True}, "row 1": {"fine": True}}
    name = "row 1  cpu all"
    tries = [(name, 8, False), (name, 3, False), (name, 1, True)]
    assert asked == [("row 0  cpu all", 8, False), *tries]


@pytest.mark.parametrize("why", [f"{confined.NOT_DONE} 240 s", confined.NO_ANSWER, FULL])
def test_what_the_machine_failed_is_asked_once_more_and_by_the_next_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    asked = list[tuple[str, int, bool]]()
    monkeypatch.setattr(confined, "each", answers(asked, why, 0))
    path = tmp_path / "kept.jsonl"
    items = [(f"row {n}", {"code": ""}) for n in range(2)]
    for _ in range(2):
        *_, found = synthesis_results.asked(items, look, path, jobs=4)
        assert found["row 1"] == {"failed": why}
    tries = [4, 3, 1] if why == FULL else [4, 3]
    assert [jobs for name, jobs, _ in asked if name == "row 1"] == 2 * tries
    assert [jobs for name, jobs, _ in asked if name == "row 0"] == [4]


def test_what_failed_beside_others_in_one_process_is_asked_once_more_in_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[str, int]]()

    def each(items: Any, work: Any, *, in_one: int, **how: Any) -> Any:
        for name, _ in items:
            asked.append((name, in_one))
            fails = name == "bad" or (name == "shy" and in_one > 1)
            yield name, {"failed": "ValueError: no"} if fails else {"fine": True}

    monkeypatch.setattr(confined, "each", each)
    items = [(name, {"code": ""}) for name in ("good", "shy", "bad")]
    *_, found = synthesis_results.asked(items, look, tmp_path / "kept.jsonl", jobs=4, in_one=8)
    assert found["shy"] == {"fine": True} and "failed" in found["bad"]
    assert asked == [("good", 8), ("shy", 8), ("bad", 8), ("shy", 1), ("bad", 1)]
    asked.clear()
    list(synthesis_results.asked(items, look, tmp_path / "alone.jsonl", jobs=1, in_one=8))
    assert asked == [("good", 1), ("shy", 1), ("bad", 1)], "nothing would ask it again"


def test_a_fault_of_the_row_is_no_fault_of_the_machine() -> None:
    assert not confined.is_passing({"failed": "ValueError: no"}) and not confined.is_passing({})
    assert confined.lacks_memory({"failed": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"})
    for why in (
        "CUBLAS_STATUS_NOT_INITIALIZED",
        "CUSOLVER_STATUS_ALLOC_FAILED",
        "can't allocate memory",
    ):
        assert confined.lacks_memory({"failed": f"RuntimeError: {why}"})
    assert confined.lacks_memory({"why_moved": FULL}) and confined.is_passing({"why_moved": FULL})
    assert not confined.lacks_memory({"failed": confined.NO_ANSWER})


def test_of_rows_that_are_compared_with_only_the_graph_is_looked_at(tmp_path: Path) -> None:
    rows = [row(id=str(n)) for n in range(2)]
    found = synthesis_check.answered(rows, (0,), (1,), arguments(), tmp_path / "check.jsonl")
    assert found is not None and found["row 1"].keys() == {"exact", "shape", "cpu_s"}
    assert found["row 0"]["exact"] == found["row 1"]["exact"] and found["row 0"]["float64"]
    # Drawn the next time, it is looked at as a whole.
    found = synthesis_check.answered(rows, (1,), (0,), arguments(), tmp_path / "check.jsonl")
    assert found is not None and found["row 1"]["float64"]


def test_rows_run_confined_and_the_result_file_says_what_was_found(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the user")
    rows = [
        row(),
        row(PLANTED["unused operator"]),
        row(f"open({str(secret)!r}); {GOOD}"),
        row(f"import os; os._exit(3); {GOOD}"),
    ]
    rows = [
        {**one, "id": str(n), "families": ["linear"], "device_name": "cpu"}
        for n, one in enumerate(rows)
    ]
    args = arguments(jobs=2)
    sample = synthesis_check.checked(rows, args)
    assert sample is not None
    found = {name: set(what) - {"id"} for name, what in sample["wrong"].items()}
    from sandbox.isolation.confine import offered

    if offered().why_no_untrusted_code is None:
        assert found["row 2"] == {"does not run"}
    assert found["row 1"] == {"unused operator"}, sample["wrong"]
    assert found["row 3"] == {"does not run"}
    assert "row 0" not in found and sample["found"].keys() == set(KINDS)
    synthesis_results.write(tmp_path / "results", "check some", sample)
    said = json.loads((tmp_path / "results" / "synthesis.json").read_text())
    assert said["summary"]["some"]["drawn"] == 4
    assert said["summary"]["some"]["found"]["unused operator"] == 1
