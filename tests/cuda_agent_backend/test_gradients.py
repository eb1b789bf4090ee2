"""Gradients of convolutions for cuda: regions of their own, right as an emulator on the CPU runs them, and what is left
to the library is asked of it once."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from kit.compare import relative
from sketch_kit import Sample, beginning_with, sample
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from cuda_agent_backend import log
from cuda_agent_backend.codegen.analysis.gemm import GemmForm, gemm_of
from cuda_agent_backend.codegen.api import as_it_stands
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.cuda.gemm.aligned_operands import sides_of
from cuda_agent_backend.codegen.cuda.gemm.operands import gather_of
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.graph.convolution_grad import BACKWARD
from cuda_agent_backend.partition.estimate import saving
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.partition.splice import Replacement, splice
from sandbox import launcher
from sandbox.graph.build import build_graph
from sandbox.timing.roofline import floor_bytes, operations

pytestmark = pytest.mark.usefixtures("plain_layouts")

DEVICE = cuda.DeviceFacts()
TILES = {"sketch": "contract", "tile_m": 32, "tile_n": 32, "depth": 16, "warp_m": 16, "warp_n": 16, "stages": 3,
         "run": 16, "split": 1}  # fmt: skip
Forward = tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


# sizes that are no multiple of a tile, and images whose last window ends before they do
CASES: dict[str, Forward] = {
    "padded": (lambda x, w: F.conv2d(x, w, padding=1), randn(2, 8, 13, 11), randn(20, 8, 3, 3)),
    "strided": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), randn(2, 12, 12, 10), randn(20, 12, 3, 3)),
    "strided, not to the end": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1), randn(2, 12, 12, 11), randn(20, 12, 3, 3),
    ),
    "strided 7 by 7": (lambda x, w: F.conv2d(x, w, stride=2, padding=3), randn(2, 3, 18, 17), randn(20, 3, 7, 7)),
    "dilated": (lambda x, w: F.conv2d(x, w, padding=2, dilation=2), randn(2, 8, 11, 13), randn(20, 8, 3, 3)),
    "pointwise": (F.conv2d, randn(2, 24, 8, 12), randn(20, 24, 1, 1)),
    "pointwise, strided": (lambda x, w: F.conv2d(x, w, stride=2), randn(2, 24, 9, 12), randn(20, 24, 1, 1)),
    "more padding than taps": (lambda x, w: F.conv2d(x, w, padding=2), randn(2, 9, 7, 8), randn(12, 9, 1, 2)),
    "groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=2), randn(2, 16, 9, 9), randn(24, 8, 3, 3)),
    "channels last": (lambda x, w: F.conv2d(x, w, padding=1), last(randn(2, 16, 9, 11)), last(randn(24, 16, 3, 3))),
    "1D": (lambda x, w: F.conv1d(x, w, stride=3, padding=4), randn(3, 12, 50), randn(16, 12, 7)),
    "3D": (lambda x, w: F.conv3d(x, w, padding=1), randn(2, 5, 6, 7, 5), randn(12, 5, 3, 3, 3)),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), randn(2, 9, 7, 6), randn(9, 10, 4, 4),
    ),
    "transposed, one more": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1), randn(2, 9, 7, 6),
        randn(9, 10, 3, 3),
    ),
    "transposed 1D, groups": (
        lambda x, w: F.conv_transpose1d(x, w, stride=3, padding=2, groups=2), randn(3, 10, 19), randn(10, 6, 5),
    ),
}  # fmt: skip
OF_INPUT, OF_WEIGHT = 0, 1


def gradients_of(forward: Callable[..., Tensor], *inputs: Tensor) -> Graph:
    """The gradients of all inputs, as autograd calls the operators for them."""

    def gradients(tangent: Tensor, *inputs: Tensor) -> Any:
        own = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(forward(*own), own, tangent)

    return make_fx(gradients, tracing_mode="fake")(forward(*inputs), *inputs).graph


def arguments_of(name: str) -> list[Any]:
    """Those of `convolution_backward` between its operands and its mask."""
    graph = gradients_of(*CASES[name])
    (whole,) = graph.find_nodes(op="call_function", target=BACKWARD)
    return list(whole.args[3:-1])


def alone(name: str, place: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """One gradient of a case as a function, and what it is called with."""
    forward, x, w = CASES[name]
    rest = [*arguments_of(name), [place == OF_INPUT, place == OF_WEIGHT, False]]
    result = forward(x, w)
    gradient = randn(*result.shape).as_strided(result.shape, result.stride())

    def function(g: Tensor, x: Tensor, w: Tensor) -> Tensor:
        (found,) = (value for value in BACKWARD(g, x, w, *rest) if value is not None)
        return found

    return function, [gradient, x, w]


def first(it: Sample) -> GemmForm:
    found = gemm_of(it.analysis.kernels[0])
    assert found is not None
    return found


def emulated(it: Sample, schedule: Schedule, folder: Path) -> Tensor:
    source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, DEVICE)
    (result,) = cuda_emulator.run(source, plan, it.inputs, folder)
    return result


def schedules(it: Sample) -> list[Schedule]:
    return cuda.schedules(it.analysis.region, it.analysis.kernels, DEVICE)


def with_tiles(it: Sample, **change: Any) -> Schedule:
    return beginning_with({**TILES, **change}, it, DEVICE)


@pytest.mark.parametrize("place", [OF_INPUT, OF_WEIGHT])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_as_accurate_as_eagers(name: str, place: int, tmp_path: Path) -> None:
    function, inputs = alone(name, place)
    it = sample(function, *inputs, target="cuda")
    want = function(*(x.double() for x in inputs))
    own = relative(it.want[0], want)
    first(it)
    for schedule in (schedules(it)[0], with_tiles(it), with_tiles(it, split=3)):
        got = emulated(it, schedule, tmp_path)
        assert got.stride() == it.want[0].stride()
        assert relative(got, want) < 2 * own + 1e-7, schedule


@pytest.mark.parametrize("name", ["padded", "strided 7 by 7"])
@pytest.mark.parametrize("change", [{"group": 1}, {"group": 2, "tile_m": 64}, {"depth": 16}])
def test_all_kernels_read_the_image_of_a_weights_gradient(
    name: str, change: dict[str, Any], tmp_path: Path
) -> None:
    function, inputs = alone(name, OF_WEIGHT)
    it = sample(function, *inputs, target="cuda")
    want = function(*(x.double() for x in inputs))
    groups = {"tile_m": 128, "tile_n": 64, "depth": 32, "stages": 3 + change.get("group", 0)}
    schedule = with_tiles(it, **(groups | {"run": 32} if "group" in change else {}) | change)
    got = emulated(it, schedule, tmp_path)
    assert relative(got, want) < 2 * relative(it.want[0], want) + 1e-7


def test_places_in_a_window_are_worked_out_once_for_a_row_or_a_term() -> None:
    def of_left(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[bool, bool]:
        side, _ = sides_of(first(sample(function, *inputs, target="cuda")))
        return side.along_k, gather_of(side) is not None

    x, w = randn(2, 16, 20, 20), randn(32, 16, 3, 3)
    strided = (None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
    gradient = F.conv2d(x, w, stride=2, padding=1)
    mask = [False, True, False]
    assert of_left(lambda g, x, w: BACKWARD(g, x, w, *strided, mask)[1], gradient, x, w) == (
        True, True
    )  # fmt: skip
    # though a window's elements are nearer to each other than those of the next window
    assert of_left(lambda x, w: F.conv2d(x, w, stride=2, padding=1), x, w) == (False, True)


@pytest.mark.parametrize("name", ["padded", "strided", "transposed"])
def test_what_follows_the_gradient_of_the_input_is_on_its_tile(name: str, tmp_path: Path) -> None:
    function, inputs = alone(name, OF_INPUT)
    it = sample(lambda g, x, w: function(g, x, w) * (x > 0), *inputs, target="cuda")
    assert len(it.analysis.kernels) == 1
    got = emulated(it, with_tiles(it), tmp_path)
    torch.testing.assert_close(got, it.want[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("place", [OF_INPUT, OF_WEIGHT])
@pytest.mark.parametrize("name", ["padded", "strided", "transposed", "channels last"])
def test_gradients_in_16_bits_are_as_accurate_as_eagers(
    name: str, place: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    function, inputs = alone(name, place)
    inputs = [x.to(dtype) for x in inputs]
    it = sample(function, *inputs, target="cuda")
    want = function(*(x.double() for x in inputs))
    got = emulated(it, schedules(it)[0], tmp_path)
    assert relative(got, want) < 1.1 * relative(it.want[0], want) + 1e-7


@pytest.mark.parametrize("place", [OF_INPUT, OF_WEIGHT])
@pytest.mark.parametrize("special", [math.inf, math.nan])
@pytest.mark.parametrize("name", ["padded", "strided", "transposed"])
def test_what_is_not_finite_is_as_in_eager(
    name: str, special: float, place: int, tmp_path: Path
) -> None:
    function, inputs = alone(name, place)
    inputs = [x.clone() for x in inputs]
    for x in inputs:
        x.view(-1)[-1] = x.view(-1)[3] = special  # at borders, where padding meets it
    it = sample(function, *inputs, target="cuda")
    want = function(*(x.double() for x in inputs)).float()  # see test_contraction
    for schedule in (with_tiles(it), with_tiles(it, split=3)):
        got = emulated(it, schedule, tmp_path)
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)


# --- graphs ----------------------------------------------------------------------------------------------------------

IMAGE, WEIGHT = torch.randn(8, 16, 28, 28), torch.randn(32, 16, 3, 3)


def on_cuda(graph: Graph) -> Graph:
    """A graph of the cpu as it is on a GPU, with Inductor's decompositions: traced again on tensors of a GPU that need
    not be there."""
    for node in graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
    values = [n.meta["val"] for n in graph.find_nodes(op="placeholder")]
    module = GraphModule(torch.nn.Module(), graph)
    with FakeTensorMode():
        inputs = [torch.empty_strided(v.shape, v.stride(), device="cuda") for v in values]
        return make_fx(module, select_decomp_table())(*inputs).graph


def training(forward: Callable[..., Tensor] = F.conv2d, *inputs: Tensor) -> Graph:
    return on_cuda(gradients_of(forward, *(inputs or (IMAGE, WEIGHT))))


def operators(region: Region) -> list[str]:
    return [str(node.target).split(".")[1] for node in region.nodes if "." in str(node.target)]


def tasks_of(regions: list[Region]) -> list[Canonical]:
    found = [canonical(r.nodes, r.outputs, r.target) for r in regions]
    assert all(isinstance(one, Canonical) for one in found)
    return [one for one in found if isinstance(one, Canonical)]


def backwards(graph: Graph) -> list[Node]:
    return graph.find_nodes(op="call_function", target=BACKWARD)


def test_each_gradient_is_a_region_whose_task_asks_for_nothing_else() -> None:
    found = partition(training())
    assert [operators(region) for region in found] == 2 * [["convolution_backward"]]
    assert all(region.reason is None and len(region.outputs) == 1 for region in found)
    masks = [one.task.nodes[-1].args["output_mask"] for one in tasks_of(found)]
    assert sorted(masks) == [(False, True, False), (True, False, False)]
    assert all(saving(region) > 0.5 * region.moved for region in found)


def test_a_network_in_training_falls_into_its_gradients() -> None:
    def network(x: Tensor, first: Tensor, bias: Tensor, second: Tensor, scale: Tensor) -> Tensor:
        x = F.relu(F.conv2d(x, first, bias, padding=1))
        x = F.relu(F.batch_norm(x, None, None, scale, training=True))
        return F.relu(F.conv2d(x, second, stride=2, padding=1)).mean((2, 3))

    inputs = (IMAGE, WEIGHT, torch.randn(32), torch.randn(64, 32, 3, 3), torch.randn(32))
    found = partition(training(network, *inputs))
    assert all(region.reason is None for region in found)
    backward = [r for r in found if "convolution_backward" in operators(r)]
    results = [[n.args[1] for n in r.nodes if n.target is operator.getitem] for r in backward]
    assert sorted(results) == [[OF_INPUT], [OF_INPUT], [OF_WEIGHT], [OF_WEIGHT]]
    inside = {node for region in found for node in region.nodes}
    assert all(node in inside for node in backwards(training_graph(found)))
    # the gradient between the two is on its way through ReLU and norm where it is made
    assert any(len(operators(region)) > 1 for region in backward)
    assert all(isinstance(as_it_stands(one.task), Analysis) for one in tasks_of(backward))


def training_graph(regions: list[Region]) -> Graph:
    return regions[0].nodes[0].graph


@pytest.mark.parametrize(
    ("forward", "x", "w", "left"),
    [
        (lambda x, w: F.conv2d(x, w, stride=2, dilation=2), IMAGE, WEIGHT, [OF_WEIGHT]),
        (lambda x, w: F.conv2d(x, w, groups=16), IMAGE, torch.randn(64, 1, 3, 3), []),
        (lambda x, w: F.conv2d(x, w, groups=16), IMAGE, torch.randn(16, 1, 3, 3), []),
        (F.conv2d, torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3), []),
        (
            lambda x, w: F.conv_transpose2d(x, w, dilation=2, output_padding=1),
            IMAGE, WEIGHT.transpose(0, 1), [],
        ),
    ],
)  # fmt: skip
def test_gradients_without_sketches_stay_the_librarys(
    forward: Callable[..., Tensor], x: Tensor, w: Tensor, left: list[int]
) -> None:
    found = partition(training(forward, x, w.contiguous()))
    assert [region.outputs[0].args[1] for region in found] == left


def test_the_library_goes_on_with_what_no_kernel_computes() -> None:
    launcher.define_ops()
    graph = training()
    one, other = partition(graph)
    first, second = tasks_of([one, other])
    place = one.outputs[0].args[1]
    splice(graph, [Replacement(one, first, 1)])
    (whole,) = backwards(graph)
    assert whole.args[-1] == [place == OF_WEIGHT, place == OF_INPUT, False]
    assert [value is None for value in whole.meta["val"]] == [
        place == OF_INPUT, place == OF_WEIGHT, True
    ]  # fmt: skip
    splice(graph, [Replacement(other, second, 2)])
    assert not backwards(graph)


def test_a_mask_may_be_a_keyword() -> None:
    launcher.define_ops()
    graph = training()
    (whole,) = backwards(graph)
    *rest, mask = whole.args
    whole.args, whole.kwargs = tuple(rest), {"output_mask": mask}
    one, _ = partition(graph)
    (task,) = tasks_of([one])
    place = one.outputs[0].args[1]
    splice(graph, [Replacement(one, task, 1)])
    assert whole.kwargs["output_mask"] == [place == OF_WEIGHT, place == OF_INPUT, False]


def test_what_cannot_be_taken_out_stays_beside_the_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(graph: Graph) -> None:
        raise IndexError("no mask")

    monkeypatch.setattr("cuda_agent_backend.partition.splice.only_needed", broken)
    launcher.define_ops()
    log.forget()
    graph = training()
    one, _ = partition(graph)
    (task,) = tasks_of([one])
    splice(graph, [Replacement(one, task, 1)])
    graph.lint()
    assert "IndexError: no mask" in caplog.text
    assert graph.find_nodes(op="call_function", target=launcher.op_for(3, 1))


def test_without_kernels_one_call_computes_all() -> None:
    graph = training()
    (before,) = backwards(graph)
    partition(graph)
    splice(graph, [])
    (whole,) = backwards(graph)
    assert whole is before and whole.args[-1] == [True, True, False]


def test_gradients_do_not_cross_a_mutation_in_the_middle() -> None:
    def changed(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        two = [1, 1]
        rest = (None, two, two, two, False, [0, 0], 1, [True, True, False])
        of_input, of_weight, _ = BACKWARD(g, x, w, *rest)
        x.add_(1.0)
        return of_input.relu() + x, of_weight

    with FakeTensorMode():
        shapes = ((8, 32, 28, 28), IMAGE.shape, WEIGHT.shape)
        inputs = [torch.empty(shape, device="cuda") for shape in shapes]
        graph = make_fx(changed, select_decomp_table())(*inputs).graph
    assert all("convolution_backward" not in operators(region) for region in partition(graph))


@pytest.mark.parametrize("place", [OF_INPUT, OF_WEIGHT])
def test_a_gradient_counts_as_the_products_and_the_bytes_that_it_takes(place: int) -> None:
    function, inputs = alone("padded", place)
    it = sample(function, *inputs, target="cuda")
    gradient, x, w = it.inputs
    read, written = ((gradient, w), x) if place == OF_INPUT else ((gradient, x), w)
    assert floor_bytes(it.task) == (sum(t.nbytes for t in read), written.nbytes)
    module = build_graph(dataclasses.replace(it.task, target="cpu"))
    assert operations(module) == 2 * gradient.numel() * w[0].numel()
