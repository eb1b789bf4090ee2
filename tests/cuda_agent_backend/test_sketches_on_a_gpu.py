"""What every CUDA sketch writes, on a GPU: as eager computes, and clean under compute-sanitizer.

At promotion kernels of sketches do not run under the sanitizer's tools (see `judgement.sanitize`), so they do here: one
of each kind that a sketch proposes, for each case that the other tests have of its family.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import test_asked_together
import test_coded
import test_composed_attention as composed
import test_composed_attention_half as composed_half
import test_contraction
import test_contraction_boxed
import test_contraction_half
import test_gated
import test_gradients
import test_joined_parts
import test_last_wave
import test_made_order
import test_mixed
import test_open_values
import test_pooled
import test_product_order
import test_reduced
import test_sketch_bags
import test_sketch_cancelling
import test_sketch_channels
import test_sketch_cuda
import test_sketch_cuda_attention as attention
import test_sketch_cuda_attention_half as half_attention
import test_sketch_cuda_columns
import test_sketch_direct
import test_sketch_gather
import test_sketch_grid
import test_sketch_halo
import test_sketch_library
import test_sketch_phases
import test_sketch_recurrent as recurrent
import test_sketch_rolled
import test_sketch_running
import test_sketch_running_products as products
import test_sketch_scan_order
import test_sketch_scatter
import test_sketch_short
import test_sketch_square
import test_sketch_together
import test_sketch_windows
import test_totals
import test_triangular
import test_weighed
import test_whole_rows
import torch
from sanitizer_kit import assert_clean
from sketch_kit import Sample, beginning_with, on_cuda
from torch._inductor import config as inductor_config

from cuda_agent_backend.codegen import api, covered_task
from cuda_agent_backend.codegen.ir.device import gpu_facts
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.registry import LIBRARY
from sandbox.accuracy.perturb_inputs import on_device
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.launcher.program import LoadFailed, load_program
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Plan

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

KINDS = (
    "sketch",
    "keep",
    "exchange",
    "group",
    "relay",
    "warps_k",
    "once",
    "aligned",
    "held",
    "wide",
    "ranks",
    "square",
)
"""Parameters that change how a kernel works, not only how much of it there is."""
MOST, SANITIZED = 4, 2
"""Kernels of a case, and those of them that run under the tools: each takes seconds there."""
LOOSE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


@dataclasses.dataclass(frozen=True)
class Job:
    """A covered task, with its inputs and what eager gives, on the CPU."""

    analysis: covered_task.Analysis
    inputs: tuple[torch.Tensor, ...]
    want: tuple[torch.Tensor, ...]


def sort_of(count: int) -> Callable[[torch.Tensor], Any]:
    """The first results of a sort; which of equal numbers comes first is open where it is not a stable one."""
    return lambda x: tuple(torch.sort(x, dim=-1, stable=True)[:count])


def largest_of(k: int) -> Callable[[torch.Tensor], Any]:
    return lambda x: torch.topk(x, k).values


NESTS: dict[str, Case] = {
    **{f"nests, {name}": case for name, case in test_sketch_cuda.CASES.items()},
    **{f"products, {name}": case for name, case in test_contraction.CASES.items()},
    **{f"boxes, {name}": case for name, case in test_contraction_boxed.CASES.items()},
    **{f"windows, {name}": case for name, case in test_sketch_windows.CASES.items()},
    **{f"filters, {name}": case for name, case in test_sketch_windows.FILTERS.items()},
    **{f"gathers, {name}": case for name, case in test_sketch_gather.CASES.items()},
    **{f"places, {name}": case for name, case in test_sketch_gather.UNCHECKED.items()},
    **{
        f"running, {name}": (function, (test_sketch_running.values(),))
        for name, function in test_sketch_running.CASES.items()
    },
    **{f"squares, {name}": case for name, case in test_sketch_square.LARGE.items()},
    **{f"columns, {name}": case[:2] for name, case in test_sketch_cuda_columns.CASES.items()},
    **{f"scans, {name}": case for name, case in test_sketch_scan_order.CASES.items()},
    **{f"channels, {name}": case for name, case in test_sketch_channels.CASES.items()},
    **{f"reduced, {name}": case for name, case in test_reduced.CASES.items()},
    **{f"pooled, {name}": case for name, case in test_pooled.CASES.items()},
    **{f"codes, {name}": case[:2] for name, case in test_coded.CASES.items()},
    **{f"cancelling, {name}": case[:2] for name, case in test_sketch_cancelling.FOUND.items()},
    **{f"gated, {name}": case for name, case in test_gated.CASES.items()},
    **{f"whole rows, {name}": case for name, case in test_whole_rows.CASES.items()},
    **{f"weighed, {name}": case for name, case in test_weighed.CASES.items()},
    **{f"totals, {name}": case for name, case in test_totals.CASES.items()},
    **{f"few channels, {name}": case for name, case in test_sketch_direct.CASES.items()},
    **{f"halos, {name}": case for name, case in test_sketch_halo.CASES.items()},
    **{f"phases, {name}": case for name, case in test_sketch_phases.CASES.items()},
    **{f"few terms, {name}": case for name, case in test_sketch_short.CASES.items()},
    **{f"bags, {name}": case for name, case in test_sketch_bags.BAGS.items()},
    **{f"folds, {name}": case for name, case in test_sketch_bags.FOLDS.items()},
    **{f"in the product's order, {name}": case for name, case in test_made_order.CASES.items()},
    **{f"joined, {name}": case[:2] for name, case in test_joined_parts.CASES.items()},
    **{f"loops, {name}": case for name, case in test_sketch_rolled.CASES.items()},
    **{f"scatters, {name}": case for name, case in test_sketch_scatter.CASES.items()},
    **{
        f"{str(dtype).removeprefix('torch.')} products, {name}": (
            function,
            tuple(x.to(dtype) for x in inputs),
        )
        for name, (function, inputs) in test_contraction_half.FUNCTIONS.items()
        for dtype in (torch.float16, torch.bfloat16)
    },
    **{
        f"sorts, {count} results of {length}": (
            sort_of(count),
            (test_sketch_cuda.randn(70, length),),
        )
        for length in (33, 300, 3000)
        for count in (1, 2)
    },
    **{
        f"the largest {k} of {length}": (largest_of(k), (test_sketch_cuda.randn(70, length),))
        for length, k in ((300, 5), (3000, 70), (60000, 9))
    },
}
IN_FLOAT64 = tuple(
    f"{kind}, {name}"
    for kind in ("few channels", "halos", "phases")
    for name in ("infinities", "transposed, infinities")
)
"""Cases on which eager's own float32 convolution on the CPU leaves out the zeros beside an image."""
RECURRENT = {f"recurrent, {name}": case for name, (case, _) in recurrent.CASES.items()}
ATTENTION = {f"attention, {name}": case for name, case in attention.CASES.items()}
GRADIENTS = {
    f"gradients, {name}, {'weight' if place else 'input'}": (name, place)
    for name in test_gradients.CASES
    for place in (test_gradients.OF_INPUT, test_gradients.OF_WEIGHT)
}
COMPOSED = {f"attention taken apart, {name}": case for name, case in composed.CASES.items()}
COMPOSED_HALF = {
    f"half attention taken apart, {name}": case for name, case in composed_half.CASES.items()
}
MIXED = {
    f"{kind}, {name}": case
    for kind, cases in (
        ("mixed", test_mixed.CASES),
        ("mixed by parts", test_mixed.FEW_ROWS),
        ("mixed by warp groups", test_mixed.WIDE),
    )
    for name, case in cases.items()
}
HALF_ATTENTION = {f"half attention, {name}": c for name, c in half_attention.CASES.items()}


def job(name: str) -> Job:
    if name in ATTENTION:
        inputs, how = ATTENTION[name]
        want = attention.wide(inputs, how).float()
        distinct = tuple({id(x): x for x in inputs}.values())
        return Job(attention.analysed(*inputs, **how), distinct, (want,))
    if name in COMPOSED:
        function, inputs = COMPOSED[name]
        analysis, given = composed.analysed(function, *inputs)
        return Job(analysis, tuple(given), (composed.wide(analysis, given).float(),))
    if name in COMPOSED_HALF:
        function, inputs = COMPOSED_HALF[name]
        half, given = composed_half.analysed(function, *composed_half.halves(inputs, torch.float16))
        return Job(half, tuple(given), (composed.wide(half, given).half(),))
    if name in MIXED:
        analysis, given = test_mixed.analysed(MIXED[name][0], *MIXED[name][1])
        return Job(analysis, tuple(given), (test_mixed.wide(analysis, given).float(),))
    if name in HALF_ATTENTION:
        inputs, how = (
            half_attention.in_half(HALF_ATTENTION[name], torch.float16),
            HALF_ATTENTION[name][1],
        )
        want = half_attention.wide(inputs, how).half()
        distinct = tuple({id(x): x for x in inputs}.values())
        return Job(half_attention.analysed(*inputs, **how), distinct, (want,))
    if name in RECURRENT:
        given = recurrent.tensors(RECURRENT[name])
        made = recurrent.layers(RECURRENT[name], [x.double() for x in given])
        task = recurrent.task_of(RECURRENT[name], given)
        return Job(recurrent.analysed(task), tuple(given), tuple(x.float() for x in made))
    function, inputs = test_gradients.alone(*GRADIENTS[name]) if name in GRADIENTS else NESTS[name]
    with inductor_config.patch(comprehensive_padding=False):
        it = on_cuda(function, *inputs)
    return Job(it.analysis, it.inputs, wide(function, inputs) if name in IN_FLOAT64 else it.want)


def wide(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return (function(*(x.double() for x in inputs)).float(),)


def kinds(schedules: Sequence[Schedule]) -> list[Schedule]:
    """The first schedule of each kind."""
    found: dict[Any, Schedule] = {}
    for schedule in schedules:
        first = schedule.parameters(0)
        shared = int(first.get("split", 1)) > 1, "last_wave" in first
        kind = (*(first.get(name) for name in KINDS), *shared)
        found.setdefault(kind, schedule)
    return list(found.values())[:MOST]


@pytest.mark.parametrize(
    "name",
    [
        *NESTS, *GRADIENTS, *ATTENTION, *COMPOSED, *COMPOSED_HALF, *MIXED, *HALF_ATTENTION, *RECURRENT,
    ],
)  # fmt: skip
def test_kernels_give_what_eager_gives_and_are_clean(name: str, tmp_path: Path) -> None:
    it = job(name)
    exact = dataclasses.replace(gpu_facts(), tf32=())
    own = [s for s in it.analysis.schedules(exact) if not LIBRARY.owns(s)]
    for number, schedule in enumerate(kinds(own)):
        made = api.generate(it.analysis, schedule)
        assert isinstance(made, Candidate), made
        folder = tmp_path / str(number)
        folder.mkdir()
        built = compile_candidate(made, folder, "sm_90a", 120)
        assert isinstance(built, Compiled), built
        for got, want in zip(run(built, made.plan, it.inputs), it.want, strict=True):
            torch.testing.assert_close(got, want, equal_nan=True, **within(want))
        if number < SANITIZED:
            assert_clean(built, made, it.inputs, schedule)


@pytest.mark.parametrize("name", test_sketch_library.CASES)
def test_libraries_between_kernels_give_what_eager_gives(
    name: str, tmp_path: Path, exact_cudnn: None
) -> None:
    it = test_sketch_library.case(name)
    for number, schedule in enumerate(test_sketch_library.called(it)):
        folder = tmp_path / str(number)
        folder.mkdir()
        given(it, schedule, folder)


@pytest.mark.parametrize("name", test_product_order.CASES)
@pytest.mark.parametrize("value", [1.0, float("inf"), float("nan")])
def test_products_in_the_cheaper_order_give_what_eager_gives(
    name: str, value: float, tmp_path: Path
) -> None:
    function, inputs = test_product_order.CASES[name]
    given = [x.clone() for x in inputs]
    given[0].view(-1)[5], given[1].view(-1)[-2] = value, value
    it = on_cuda(function, *given)
    made = test_product_order.guarded_candidate(it)
    built = compile_candidate(made, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    for got, want in zip(run(built, made.plan, it.inputs), it.want, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, **within(want))
    if value == 1:
        assert_clean(built, made, it.inputs)


@pytest.mark.parametrize("name", test_triangular.CASES)
def test_terms_that_are_left_out_change_nothing(name: str, tmp_path: Path) -> None:
    """Small products are not offered so: what is left out takes less time than to note what is not finite."""
    it = test_triangular.case(name)
    for number, tiles in enumerate((test_triangular.WARPS, test_triangular.GROUP)):
        made = api.generate(it.analysis, test_triangular.with_tiles(it, **tiles))
        assert isinstance(made, Candidate), made
        folder = tmp_path / str(number)
        folder.mkdir()
        built = compile_candidate(made, folder, "sm_90a", 120)
        assert isinstance(built, Compiled), built
        (got,) = run(built, made.plan, it.inputs)
        torch.testing.assert_close(got, it.want[0], rtol=1e-4, atol=1e-4)
        assert_clean(built, made, it.inputs, tiles)


FORCED: dict[str, tuple[Any, tuple[torch.Tensor, ...], dict[str, Any]]] = {
    **{
        f"asked together, {name}": (function, inputs, test_asked_together.ROW | change)
        for name, (function, inputs, change) in test_asked_together.CASES.items()
    },
    **{
        f"totals, {name}": (*test_totals.CASES[case], test_totals.base(case) | change)
        for name, (case, change) in test_totals.CHANGES.items()
    },
    **{
        f"totals of blocks that stay, {name}": (
            *test_totals.CASES[case],
            test_totals.base(case) | change | {"stay": 1},
        )
        for name, (case, change) in test_totals.CHANGES.items()
        if "cluster" not in name
    },
}
"""Schedules that small inputs are not given."""


@pytest.mark.parametrize("name", FORCED)
def test_schedules_of_large_rows_are_right_on_small_ones(name: str, tmp_path: Path) -> None:
    """On a device with two multiprocessors, as the schedules think, so that blocks have rows in turn.

    The second run is without anything between: nothing is left of the first.
    """
    function, inputs, parameters = FORCED[name]
    it = on_cuda(function, *inputs)
    few = dataclasses.replace(gpu_facts(), sm_count=2)
    made = api.generate(it.analysis, Schedule.of(parameters), few)
    assert isinstance(made, Candidate), made
    built = compile_candidate(made, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    first = run(built, made.plan, it.inputs)
    for got, want in zip(first, it.want, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, **within(want))
    assert all(map(torch.equal, first, run(built, made.plan, it.inputs)))
    assert_clean(built, made, it.inputs, name)


@pytest.mark.parametrize("case", test_last_wave.SHARED)
def test_a_last_wave_that_blocks_share_changes_nothing(
    case: test_last_wave.Shared, tmp_path: Path
) -> None:
    """Small products have no whole waves on a device as large as those that this runs on."""
    it = case.sample()
    schedule = beginning_with(case.tiles, it, case.device)
    made = api.generate(it.analysis, schedule, case.device)
    assert isinstance(made, Candidate), made
    built = compile_candidate(made, tmp_path, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    for got, want in zip(run(built, made.plan, it.inputs), it.want, strict=True):
        loose = LOOSE[want.dtype]
        torch.testing.assert_close(got, want, rtol=loose, atol=loose)
    assert_clean(built, made, it.inputs, case)


@pytest.mark.parametrize("name", test_sketch_together.CASES)
def test_rows_taken_together_are_as_eager_computes_them(name: str, tmp_path: Path) -> None:
    """Small rows are not offered so."""
    function, inputs, parameters = test_sketch_together.CASES[name]
    it = on_cuda(function, *inputs)
    given(it, Schedule.of({"sketch": "row", **parameters}), tmp_path)


@pytest.mark.parametrize("name", test_sketch_cuda_columns.ODD)
def test_rows_copied_by_few_bytes_are_as_eager_computes_them(name: str, tmp_path: Path) -> None:
    function, inputs, parameters = test_sketch_cuda_columns.ODD[name]
    way = {"sketch": "row", "exchange": "block", "segments": 1, **parameters}
    given(on_cuda(function, *inputs), Schedule.of(way), tmp_path)


@pytest.mark.parametrize("way", products.WAYS)
def test_running_products_are_those_of_double_precision_rounded(way: str, tmp_path: Path) -> None:
    it = on_cuda(lambda x: x.cumprod(1), products.factors())
    it = dataclasses.replace(it, want=(it.inputs[0].double().cumprod(1).float(),))
    parameters = {"sketch": "row", "exchange": "block", "segments": 1, **products.WAYS[way]}
    given(it, Schedule.of(parameters), tmp_path)


@pytest.mark.parametrize("name", test_open_values.CASES)
def test_what_c_leaves_open_is_as_the_device_has_it(name: str, tmp_path: Path) -> None:
    it = test_open_values.by_the_device(name)
    given(it, it.analysis.schedules(gpu_facts())[0], tmp_path)


IN_GROUPS = (
    *(("layer norm", way) for way in test_sketch_grid.WAYS),
    *((name, "shared") for name in test_sketch_grid.CASES if name != "layer norm"),
)


@pytest.mark.parametrize(("name", "way"), IN_GROUPS)
def test_rows_of_blocks_that_meet_in_memory_are_as_eager_computes_them(
    name: str, way: str, tmp_path: Path
) -> None:
    """Small rows are not offered so."""
    function, inputs = test_sketch_grid.CASES[name]
    parameters = test_sketch_grid.WAY | test_sketch_grid.WAYS[way]
    given(on_cuda(function, *inputs), Schedule.of(parameters), tmp_path)


def test_groups_that_fill_the_device_meet_each_time_with_the_same_result(tmp_path: Path) -> None:
    x = torch.randn(40, 2_000_000)
    it = on_cuda(lambda x: torch.softmax(x, -1), x)
    found = [s for s in it.analysis.schedules() if s.parameters(0)["exchange"] == "grid"]
    assert found
    for number, schedule in enumerate(found):
        made = api.generate(it.analysis, schedule)
        assert isinstance(made, Candidate), made
        built = compile_candidate(made, tmp_path / str(number), "sm_90a", 120)
        assert isinstance(built, Compiled), built
        launch, (result,) = loaded(built, made.plan, it.inputs)
        launch()
        first = result.clone()
        torch.testing.assert_close(first.cpu(), it.want[0])
        for _ in range(50):
            result.fill_(-1)
            launch()
            assert torch.equal(first, result)


def given(it: Sample, schedule: Schedule, folder: Path) -> None:
    """A schedule's kernels give what eager gives, and are clean."""
    made = api.generate(it.analysis, schedule)
    assert isinstance(made, Candidate), made
    built = compile_candidate(made, folder, "sm_90a", 120)
    assert isinstance(built, Compiled), built
    for got, want in zip(run(built, made.plan, it.inputs), it.want, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, **within(want))
    assert_clean(built, made, it.inputs, schedule)


def within(want: torch.Tensor) -> dict[str, float]:
    """How far from eager's results ours may be, by how large they are; eager's own errors are in there too."""
    loose = LOOSE.get(want.dtype)
    if loose is None:
        return {}
    finite = want[want.isfinite()].double()
    typical = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    return {"rtol": loose, "atol": loose * min(max(1.0, typical), 1e4)}


def run(built: Compiled, plan: Plan, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    launch, outputs = loaded(built, plan, inputs)
    launch()
    torch.cuda.synchronize()
    return [x.cpu() for x in outputs]


def loaded(
    built: Compiled, plan: Plan, inputs: Sequence[torch.Tensor]
) -> tuple[Callable[[], None], list[torch.Tensor]]:
    """What launches the plan, and the outputs that it writes."""
    program = load_program(built.path, plan)
    assert not isinstance(program, LoadFailed), program
    device = [on_device(x, "cuda") for x in inputs]
    empty = [
        torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device="cuda")
        for s in (*plan.output_specs, *plan.temporary_specs)
    ]
    everything = [*device, *empty]

    def launch() -> None:
        pointers = [x.data_ptr() for x in everything]
        program.launch(pointers, torch.cuda.current_stream().cuda_stream, 0)

    return launch, empty[: len(plan.output_specs)]
