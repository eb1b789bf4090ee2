"""A large task's check: in pieces it finds what it finds at once, and holds less."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_kit import GOOD, task
from torch import Tensor, nn

from benchmarks.practice_large_table import files
from cuda_agent_backend.bench import in_pieces
from cuda_agent_backend.bench.built_task import BuiltTask, Place, build
from cuda_agent_backend.bench.in_pieces import oracle_in_pieces
from cuda_agent_backend.bench.measurement import (
    EAGER,
    INDUCTOR,
    OURS,
    DrawCheck,
    check,
    leased,
)
from cuda_agent_backend.bench.sizes import LiveStorages
from cuda_agent_backend.tools.load_model import BadTarget, import_file
from cuda_agent_backend.tools.model_oracle import oracle, tensors
from sandbox.memory import device, leases
from sandbox.memory.device import Room
from sandbox.memory.footprint import STEP_BYTES
from sandbox.memory.leases import Leases
from sandbox.timing.device_lock import DeviceLock

Change = Callable[[Tensor], Tensor]


def built(tmp_path: Path) -> BuiltTask:
    found = build(task(tmp_path / "good.py", GOOD).path, Place("cpu", torch.float32), 0)
    assert isinstance(found, BuiltTask)
    return found


def checked(made: BuiltTask, ours: Change, plain: Change, *, pieces: bool) -> DrawCheck:
    inputs = made.draw(1)
    calls: dict[str, Any] = {EAGER: made.model}
    calls[OURS] = lambda *x: ours(made.model(*x))
    calls[INDUCTOR] = lambda *x: plain(made.model(*x))
    sliced = oracle_in_pieces(made.model, inputs, least_bytes=0) if pieces else None
    assert (sliced is not None) == pieces
    with torch.no_grad():
        return check(made, calls, inputs, sliced)


def same(x: Tensor) -> Tensor:
    return x


def coarse(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def other(x: Tensor) -> Tensor:
    return x + 0.1


@pytest.mark.parametrize(
    ("ours", "plain", "wrong", "as_inductor"),
    [
        (same, same, False, False),
        (coarse, same, True, False),
        (coarse, coarse, False, True),
        (other, same, True, False),
        (lambda x: x[:1], same, True, False),
    ],
    ids=["same", "coarse", "as_inductor", "other", "shape"],
)
def test_a_check_in_pieces_finds_what_one_at_once_finds(
    tmp_path: Path, ours: Change, plain: Change, wrong: bool, as_inductor: bool
) -> None:
    made = built(tmp_path)
    whole, parts = (checked(made, ours, plain, pieces=pieces) for pieces in (False, True))
    for found in (whole, parts):
        assert (bool(found.wrong), found.as_inductor) == (wrong, as_inductor), found.wrong
    assert parts.error_ratio == pytest.approx(whole.error_ratio, rel=1e-3)


def test_small_tasks_and_those_without_a_graph_have_a_whole_oracle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Depends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[: int(x.sum())]

    inputs = (torch.ones(4),)
    assert oracle_in_pieces(nn.ReLU(), inputs) is None and "whole" not in caplog.text
    assert oracle_in_pieces(nn.ReLU(), inputs, least_bytes=32) is not None
    assert oracle_in_pieces(nn.ReLU(), inputs, least_bytes=33) is None
    assert oracle_in_pieces(Depends(), inputs, least_bytes=0) is None
    assert "computed whole" in caplog.text


def test_weights_inputs_and_other_values_go_where_they_belong() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(6, 5), nn.BatchNorm1d(5).eval()

        def forward(self, x: Tensor, by: float, y: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.norm(self.linear(x) * by)
            return torch.relu_(hidden.clone()), (hidden + y).sum(1)

    model = Scaled().eval()
    model.norm.running_mean = torch.randn(5)  # type: ignore[assignment]
    inputs = (torch.randn(64, 6), 0.7, torch.randn(64, 5))
    sliced = oracle_in_pieces(model, inputs, least_bytes=0)
    assert sliced is not None
    exact = oracle(model, inputs)
    seen = [torch.zeros_like(one, dtype=torch.bool) for one in exact]
    for piece in sliced.pieces(inputs):
        torch.testing.assert_close(piece.oracle, piece.of(exact[piece.number]))
        piece.of(seen[piece.number]).fill_(True)
    assert all(bool(one.all()) for one in seen)


@pytest.mark.parametrize("name", ["silu_gate", "rms_norm_of_tokens", "softmax_of_long_rows"])
def test_the_check_of_a_large_task_holds_little_more_than_inputs_and_outputs_twice(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = (path for path in files() if path.stem == name)
    module = import_file(path)
    assert not isinstance(module, BadTarget)
    for size, value in {"ROWS": 600, "TOKENS": 600, "COLUMNS": 900, "FEATURES": 900}.items():
        if hasattr(module, size):
            monkeypatch.setattr(module, size, value)
    monkeypatch.setattr(in_pieces, "slice_bytes", lambda moved: moved // 20)
    model, inputs = module.Model(*module.get_init_inputs()), module.get_inputs()
    calls = dict.fromkeys((EAGER, INDUCTOR, OURS), model)
    made = BuiltTask(model, lambda seed: inputs, lambda: model)
    sliced = oracle_in_pieces(model, inputs, least_bytes=0)
    assert sliced is not None
    peaks = []
    for oracle_or_none in (None, sliced):
        with torch.no_grad(), LiveStorages() as counted:
            found = check(made, calls, inputs, oracle_or_none)
        assert not found.wrong
        peaks.append(counted.peak)
    with torch.no_grad():
        outputs = sum(tensor.nbytes for tensor in tensors(model(*inputs)))
    whole, parts = peaks
    given = sum(tensor.nbytes for tensor in (*inputs, *model.parameters()))
    assert parts < 0.75 * whole
    assert parts < given + 2 * outputs + 0.2 * (given + outputs)


@pytest.mark.parametrize(
    ("ours", "plain", "order"),
    [
        (same, same, [EAGER, OURS]),
        (coarse, coarse, [EAGER, OURS, INDUCTOR]),
        (lambda x: x[:1], same, [EAGER, OURS]),
    ],
    ids=["same", "as_inductor", "shape"],
)
def test_eager_runs_once_and_before_there_are_outputs_of_ours(
    tmp_path: Path, ours: Change, plain: Change, order: list[str]
) -> None:
    made, ran = built(tmp_path), list[str]()
    inputs = made.draw(1)
    there: dict[str, weakref.ref[Tensor]] = {}

    def call(name: str, change: Change) -> Any:
        def run(*x: Any) -> Tensor:
            held = {other for other, output in there.items() if output() is not None}
            assert held <= ({OURS} if name == INDUCTOR else {EAGER})
            ran.append(name)
            out = change(made.model(*x)).clone()
            there[name] = weakref.ref(out)
            return out

        return run

    changes = {EAGER: same, OURS: ours, INDUCTOR: plain}
    calls = {name: call(name, change) for name, change in changes.items()}
    sliced = oracle_in_pieces(made.model, inputs, least_bytes=0)
    with torch.no_grad():
        check(made, calls, inputs, sliced)
    assert ran == order


class Largest(nn.Module):
    """The three largest of each row of whole numbers, and the place of the largest of what is computed of them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, places = torch.topk(x, 3, dim=1)
        return values, places, torch.argmax(x * 0.5, dim=1)


def largest(change: Callable[[Tensor], Tensor]) -> Any:
    """As the model, but that of equal values it takes others: those that come first in the rows the other way round."""

    def call(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = x.shape[1]
        values, places = torch.topk(x.flip(1), 3, dim=1)
        first = torch.argmax(x.flip(1), dim=1)
        return values, change(count - 1 - places), change(count - 1 - first)

    return call


@pytest.mark.parametrize("pieces", [True, False], ids=["pieces", "whole"])
@pytest.mark.parametrize(
    ("change", "wrong"), [(same, False), (lambda x: (x + 1) % 40, True)], ids=["tie", "wrong"]
)
def test_of_equal_values_any_place_is_right(
    pieces: bool, change: Callable[[Tensor], Tensor], wrong: bool
) -> None:
    inputs = (torch.randint(0, 9, (50, 40)).float(),)
    model = Largest()
    calls: dict[str, Any] = {EAGER: model, INDUCTOR: model, OURS: largest(change)}
    assert not torch.equal(model(*inputs)[1], calls[OURS](*inputs)[1])
    made = BuiltTask(model, lambda seed: inputs, lambda: model)
    sliced = oracle_in_pieces(model, inputs, least_bytes=0) if pieces else None
    with torch.no_grad():
        found = check(made, calls, inputs, sliced)
    assert bool(found.wrong) == wrong and ("output 1" in found.wrong) == wrong, found.wrong


def test_what_eager_mode_works_out_is_part_of_what_a_measurement_holds() -> None:
    class Squares(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.square().sum(dim=0)

    x = torch.rand(1 << 18, 512)
    found = oracle_in_pieces(Squares(), [x], least_bytes=0)
    assert found is not None and found.eager >= x.nbytes > STEP_BYTES
    assert found.held_bytes >= 2 * x.nbytes


class Device:
    """One of which nothing is used."""

    def room(self) -> Room:
        return Room(80 << 30, 80 << 30)


def test_a_large_task_is_measured_under_a_lease_on_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "CudaMemory", Device)
    model, x = torch.nn.Softmax(-1), torch.randn(300, 200)
    found = oracle_in_pieces(model, [x], least_bytes=0)
    assert found is not None
    assert (found.moved, found.outputs) == (2 * x.nbytes, x.nbytes)
    assert found.held_bytes == 4 * x.nbytes + found.sliced.held_bytes + STEP_BYTES
    lock = DeviceLock(tmp_path / "lock")
    for target, held in (("cuda", [found.held_bytes]), ("cpu", [])):
        with leased(lock, found.held_bytes, target):
            known = Leases(lock.path, Device()).known()
            assert [lease.bytes for lease in known] == held
    monkeypatch.setattr(leases, "GRACE_S", 0.0)
    with (
        leased(lock, 79 << 30, "cuda"),
        leased(lock, 81 << 30, "cuda"),
    ):  # it goes on, and may find no memory
        assert len(Leases(lock.path, Device()).known()) == 1
