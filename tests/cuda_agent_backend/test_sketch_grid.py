"""Rows of a group of blocks that stay on the device and meet by way of memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, on_cuda, randn
from torch.nn import functional as F

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Launch, Plan

SMALL = DeviceFacts(sm_count=6)
"""A device with room for few blocks."""
WAY: dict[str, Parameter] = {
    "sketch": "row",
    "exchange": "grid",
    "segments": 3,
    "vector": 4,
    "team": 64,
    "across": 1,
}
WAYS: dict[str, dict[str, Parameter]] = {
    "shared": {"keep": "shared", "unroll": 4},
    "rows in flight": {"keep": "shared", "unroll": 4, "stages": 2},
    "two blocks of a processor": {"keep": "shared", "unroll": 2, "blocks": 2},
    "a part held": {"keep": "shared", "unroll": 4, "held": 1},
    "registers": {"keep": "registers", "segments": 2},
    "read again": {"keep": "none", "unroll": 2, "segments": 5},
    "single elements": {"keep": "shared", "vector": 1, "team": 32, "segments": 6},
}  # fmt: skip
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    "layer norm": (lambda x: F.layer_norm(x, (2004,)), (randn(7, 2004) + 3,)),
    "fewer rows than groups": (lambda x: F.layer_norm(x, (1500,)), (randn(1, 1500),)),
    "softmax": (lambda x: torch.softmax(x, -1), (randn(5, 1204),)),
    "group norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (randn(3, 8, 10, 12), randn(8), randn(8)),
    ),
    "batch statistics": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        (randn(5, 4, 12, 10), randn(4), randn(4)),
    ),
    "sum of squares": (lambda x: x.square().sum(-1), (randn(4, 1100),)),
    "a norm with extremes": (
        lambda x: (x / x.norm(dim=-1, keepdim=True), x.argmax(-1), x.amin(-1)),
        (randn(4, 1100),),
    ),
    "weights of parts of a row, of which blocks share an array": (
        lambda x, w: (
            (x - x.mean((1, 2), True)) / x.std((1, 2), keepdim=True) * w.softmax(1)[:, :, None]
        ),
        (randn(7, 8, 152), randn(7, 8)),
    ),
    "half precision": (lambda x: torch.softmax(x * 2, -1), (randn(4, 1608).half(),)),
}


@pytest.fixture(scope="module", params=CASES)
def it(request: pytest.FixtureRequest) -> Sample:
    function, inputs = CASES[request.param]
    return on_cuda(function, *inputs)


def emitted(it: Sample, way: dict[str, Parameter], device: DeviceFacts = SMALL) -> tuple[str, Plan]:
    schedule = Schedule.of(WAY | way)
    return cuda.emit(it.analysis.region, it.analysis.kernels, schedule, device)


def assert_right(it: Sample, source: str, plan: Plan, folder: Path) -> None:
    for got, want in zip(cuda_emulator.run(source, plan, it.inputs, folder), it.want, strict=True):
        loose = {"rtol": 2e-2, "atol": 1e-3} if want.dtype == torch.float16 else {}
        torch.testing.assert_close(got, want, **loose)


@pytest.mark.parametrize("way", WAYS)
def test_results_are_eagers(it: Sample, way: str, tmp_path: Path) -> None:
    try:
        source, plan = emitted(it, WAYS[way])
    except Unsupported as reason:
        pytest.skip(str(reason))
    assert_right(it, source, plan, tmp_path)


def test_several_warps_look_for_what_more_blocks_than_a_warp_has_threads_leave(
    tmp_path: Path,
) -> None:
    it = on_cuda(lambda x: F.layer_norm(x, (1100,)), randn(3, 1100) + 2)
    way: dict[str, Parameter] = {"keep": "shared", "vector": 1, "segments": 37}
    source, plan = emitted(it, way, DeviceFacts(sm_count=40))
    assert "37, 64>(group" in source
    assert_right(it, source, plan, tmp_path)


EMULATED = """
import sys; from pathlib import Path; import cuda_emulator, torch; from sandbox.plan.plan import Plan
folder = Path(sys.argv[1]); plan = Plan.from_json((folder / "plan").read_text())
inputs = [torch.zeros(spec.shape) for spec in plan.input_specs]
cuda_emulator.run((folder / "source").read_text(), plan, inputs, folder)
"""


def emulated_apart(source: str, plan: Plan, folder: Path) -> subprocess.CompletedProcess[str]:
    """In a process that the emulator may end."""
    (folder / "source").write_text(source)
    (folder / "plan").write_text(plan.to_json())
    paths = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", EMULATED, str(folder)]
    return subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )


def test_a_block_ahead_of_its_group_overwrites_nothing_that_others_still_read(
    tmp_path: Path,
) -> None:
    """With one place for partial results it does: each block of an emulated launch goes as far as it can."""
    function, inputs = CASES["layer norm"]
    source, plan = emitted(on_cuda(function, *inputs), WAYS["shared"])
    assert emulated_apart(source, plan, tmp_path).returncode == 0
    one_place = source.replace("meeting % 2 * int(gridDim.x)", "0")
    assert one_place != source
    done = emulated_apart(one_place, plan, tmp_path)
    assert done.returncode < 0 and "threads wait for each other" in done.stderr


def launches(plan: Plan) -> tuple[Launch, Launch]:
    first, second = plan.steps
    assert isinstance(first, Launch) and isinstance(second, Launch)
    return first, second


@pytest.mark.parametrize(
    ("rows", "blocks", "segments", "grid"),
    [(7, 1, 3, 6), (7, 2, 3, 12), (1, 2, 3, 3), (7, 1, 4, 4), (7, 2, 5, 10)],
)
def test_a_launch_has_whole_groups_and_no_more_than_fit(
    rows: int, blocks: int, segments: int, grid: int
) -> None:
    it = on_cuda(lambda x: torch.softmax(x, -1), torch.empty(rows, 4096))
    source, plan = emitted(it, WAYS["shared"] | {"blocks": blocks, "segments": segments})
    begin, work = launches(plan)
    assert work.grid == (grid, 1, 1) and work.cooperative and not begin.cooperative
    assert f"__launch_bounds__({work.block[0]}, {blocks}) {work.kernel}(" in source


def test_what_blocks_leave_for_each_other_is_set_to_zero_by_a_launch_before() -> None:
    it = on_cuda(lambda x: torch.softmax(x, -1), torch.empty(9, 4096))
    source, plan = emitted(it, WAYS["shared"])
    begin, work = launches(plan)
    (met,) = begin.args
    found = next(b for b in plan.buffers if b.name == met)
    assert met in work.args and found.kind == "temporary" and found.spec.dtype == "int64"
    assert found.spec.shape == (2 * 6,)  # two places for each block's word
    assert "if (i < 12) met[i] = 0;" in source


def test_a_place_is_as_large_as_what_any_meeting_needs() -> None:
    it = on_cuda(lambda x: F.layer_norm(x, (4096,)).exp().sum(-1), torch.empty(9, 4096))
    _, plan = emitted(it, WAYS["shared"])
    assert plan.temporary_specs[0].shape == (2 * 6 * 3,)  # mean, squared deviations and count


def test_what_other_blocks_write_is_neither_const_nor_restricted() -> None:
    """Else the compiler may read it by ways that do not see what other multiprocessors write meanwhile."""
    it = on_cuda(lambda x: F.layer_norm(x, (4096,)), torch.empty(9, 4096))
    source, _ = emitted(it, WAYS["shared"])
    (parameters,) = re.findall(r"k0_1\((.*)\) \{", source)
    assert [p for p in parameters.split(", ") if "m_" not in p] == ["uint64_t* met"]


def test_it_begins_when_the_launch_before_it_has_ended_and_what_follows_waits() -> None:
    it = on_cuda(lambda x: (lambda s: (s, s.sum(0)))(torch.softmax(x, -1)), torch.empty(9, 4096))
    rest = cuda.schedules(it.analysis.region, it.analysis.kernels, SMALL)[0]
    schedule = Schedule.of(WAY | WAYS["shared"], rest.parameters(1))
    made = api.generate(it.analysis, schedule, SMALL)
    assert isinstance(made, Candidate), made
    begin, work, *after = [s for s in made.plan.steps if isinstance(s, Launch)]
    assert work.cooperative and not work.dependent and not begin.dependent
    assert after and all(s.dependent and not s.cooperative for s in after)


@pytest.mark.parametrize(
    ("change", "device", "reason"),
    [
        ({"segments": 7}, SMALL, "more segments than the device has room for at once"),
        ({"across": 2}, SMALL, "several rows of a block in a grid"),
        ({"lanes": "outer", "vector": 1}, SMALL, "columns"),
        ({"blocks": 3, "team": 1024, "vector": 1}, SMALL, "3 blocks on a multiprocessor, which holds 2"),
        ({"blocks": 2, "segments": 2, "team": 256}, DeviceFacts(sm_count=6, arch="sm_89"), "shared memory"),
        ({}, DeviceFacts(sm_count=6, arch="sm_60"), "sm_60, whose limits are not known"),
    ],
)  # fmt: skip
def test_a_way_that_does_not_fit_is_refused_with_its_reason(
    change: dict[str, Parameter], device: DeviceFacts, reason: str
) -> None:
    it = on_cuda(lambda x: torch.softmax(x, -1), torch.empty(9, 40000))
    with pytest.raises(Unsupported, match=reason):
        emitted(it, WAYS["shared"] | change, device)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.cumsum(-1), "scans"),
        (lambda x: x * 2, "meet for nothing"),
    ],
)
def test_rows_that_a_grid_is_not_for_are_refused(
    function: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> None:
    it = on_cuda(function, torch.empty(9, 4096))
    with pytest.raises(Unsupported, match=reason):
        emitted(it, WAYS["shared"])


LONG: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "layer norm": (lambda x: F.layer_norm(x, x.shape[1:]), ((24, 2_500_000),)),
    "group norm": (
        lambda x, w, b: F.group_norm(x, 3, w, b),
        ((10, 48, 350, 370), (48,), (48,)),
    ),
    "softmax": (lambda x: torch.softmax(x, 1), ((96, 600_000),)),
    "instance norm": (lambda x: F.instance_norm(x), ((3, 24, 60, 120, 110),)),
    "batch statistics": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        ((40, 72, 150, 140), (72,), (72,)),
    ),
}


def of_shapes(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Sample:
    return on_cuda(function, *(torch.empty(shape) for shape in shapes))


def in_groups(it: Sample, device: DeviceFacts) -> list[Schedule]:
    found = cuda.schedules(it.analysis.region, it.analysis.kernels, device)
    return [s for s in found if s.parameters(0).get("exchange") == "grid"]


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("name", LONG)
def test_what_is_proposed_for_long_rows_fits_the_device_and_its_registers(
    name: str, tmp_path: Path
) -> None:
    function, shapes = LONG[name]
    it = of_shapes(function, *shapes)
    found = in_groups(it, DeviceFacts())
    assert 2 <= len(found) <= 3
    for number, schedule in enumerate(found):
        made = api.generate(it.analysis, schedule, DeviceFacts())
        assert isinstance(made, Candidate), made
        _, work = launches(made.plan)
        built = compile_candidate(made, tmp_path / str(number), "sm_90a")
        assert isinstance(built, Compiled), built
        facts = built.facts[work.kernel]
        blocks = int(schedule.parameters(0)["blocks"])
        assert facts["spill_load_bytes"] == facts["spill_store_bytes"] == 0
        assert int(facts["blocks_per_sm"]) >= blocks
        assert 0.9 * blocks * 132 < int(work.grid[0]) <= blocks * 132


@pytest.mark.parametrize("name", ["softmax", "layer norm"])
def test_what_is_proposed_for_a_small_device_gives_what_eager_does(
    name: str, tmp_path: Path
) -> None:
    device = DeviceFacts(
        sm_count=4, arch="sm_80", l2_bytes=1 << 14, shared_per_block_bytes=32 << 10
    )
    it = on_cuda(LONG[name][0], randn(6, 12000))
    found = in_groups(it, device)
    assert len(found) == 3
    for schedule in found:
        source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, device)
        assert_right(it, source, plan, tmp_path)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: torch.softmax(x, -1), (800, 100_000)),  # a few blocks of a cluster keep a row
        (lambda x: torch.softmax(x, -1), (2, 2_000_000)),  # the cache keeps all rows
        (lambda x: x.square().sum(-1), (24, 2_500_000)),  # nothing is read twice
        (lambda x: x.cumsum(-1), (24, 2_500_000)),
        (lambda x: torch.softmax(x, 0), (2_500_000, 24)),  # columns
    ],
)
def test_groups_are_proposed_for_nothing_else(
    function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]
) -> None:
    assert not in_groups(of_shapes(function, shape), DeviceFacts())


def test_of_rows_that_no_device_keeps_a_part_is_held() -> None:
    it = of_shapes(LONG["softmax"][0], (6, 12_000_000))
    (only,) = in_groups(it, DeviceFacts())
    parameters = only.parameters(0)
    assert parameters["held"] and int(parameters["segments"]) == 132


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
def test_devices_without_clusters_have_groups_for_shorter_rows(tmp_path: Path) -> None:
    older = DeviceFacts(
        sm_count=108, arch="sm_80", l2_bytes=40 << 20, shared_per_block_bytes=163 << 10
    )
    it = of_shapes(LONG["softmax"][0], (400, 100_000))
    found = in_groups(it, older)
    assert found
    for number, schedule in enumerate(found):
        made = api.generate(it.analysis, schedule, older)
        assert isinstance(made, Candidate), made
        built = compile_candidate(made, tmp_path / str(number), "sm_80")
        assert isinstance(built, Compiled), built
