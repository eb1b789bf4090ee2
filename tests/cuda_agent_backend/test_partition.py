"""Which regions a post-grad graph falls into. Graphs come from `make_fx`, so no code is generated."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from cuda_agent_backend.operators.masked_operands import masked_operand
from cuda_agent_backend.operators.views import viewable
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.partition.regions import partition


def graph_of(function: Callable[..., Any], *inputs: Any, tracing: str = "fake") -> Graph:
    from torch._inductor.decomposition import select_decomp_table

    return make_fx(function, select_decomp_table(), tracing)(*inputs).graph


def regions(function: Callable[..., Any], *inputs: Any, **how: Any) -> list[Region]:
    return partition(graph_of(function, *inputs, tracing=how.pop("tracing", "fake")), **how)


def operators(region: Region) -> list[str]:
    return [str(node.target).split(".")[1] for node in region.nodes if "." in str(node.target)]


X, W = torch.randn(16, 32), torch.randn(32, 32)


def test_a_chain_of_pointwise_and_reductions_is_one_region() -> None:
    (found,) = regions(lambda x: torch.softmax(x * 2, -1), X)
    assert found.reason is None and len(found.inputs) == len(found.outputs) == 1
    assert found.moved == 2 * X.numel() * 4


def test_a_small_matmul_parts_regions_and_belongs_to_none() -> None:
    found = regions(lambda x, w: torch.relu(torch.exp(x) @ w), X, W)
    assert [operators(region) for region in found] == [["exp"], ["relu"]]


@pytest.mark.parametrize("places", [lambda x: x.unbind(0), lambda x: [x[t] for t in range(40)]])
def test_a_loop_over_the_places_of_an_input_reads_it_as_one(places: Callable[..., Any]) -> None:
    """And not as so many inputs that the loop would fall apart."""

    def smoothed(x: torch.Tensor) -> torch.Tensor:
        state, found = torch.zeros_like(x[0]), []
        for now in places(x):
            state = 0.9 * state + 0.1 * now
            found.append(state)
        return torch.stack(found)

    (region,) = regions(smoothed, torch.randn(40, 32, 8))
    assert region.reason is None and [node.op for node in region.inputs] == ["placeholder"]


def test_few_views_of_an_input_stay_outside() -> None:
    (region,) = regions(lambda x: torch.exp(x[0]) + x[3], torch.randn(16, 8, 8))
    assert len(region.inputs) == 2


LARGE = torch.randn(256, 128)
SQUARE = torch.randn(128, 128)


def test_a_large_matmul_is_fused_with_what_follows_and_not_with_what_comes_before() -> None:
    found = regions(lambda x, w: torch.relu(torch.exp(x) @ w), LARGE, SQUARE)
    assert [operators(region) for region in found] == [["exp"], ["mm", "relu"]]
    assert all(region.reason is None for region in found)


def test_one_matmul_to_a_region() -> None:
    found = regions(lambda x, v, w: torch.sigmoid(x @ v) * (x @ w), LARGE, SQUARE, SQUARE + 1)
    assert [operators(region) for region in found] == [["mm"], ["mm", "sigmoid", "mul"]] or [
        operators(region) for region in found
    ] == [["mm"], ["sigmoid", "mm", "mul"]]
    assert found[0].reason is not None and "library" in found[0].reason
    assert found[0].outputs[0] in found[1].inputs


def on_cuda(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[Region]:
    """Regions of a graph on a GPU that need not be there."""
    with FakeTensorMode():
        inputs = [torch.empty(shape, device="cuda") for shape in shapes]
        traced = make_fx(function, decomposition_table=select_decomp_table())(*inputs)
    return partition(traced.graph)


def test_on_cuda_two_products_of_one_operand_that_are_combined_are_one_region() -> None:
    def gated(x: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (x @ g).sigmoid() * (x @ v)

    def kept(x: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ g
        return y, y.sigmoid() * (x @ v)

    def apart(x: torch.Tensor, y: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (x @ g).sigmoid() * (y @ v)

    x, w = (512, 300), (300, 256)
    (found,) = on_cuda(gated, x, w, w)
    assert operators(found) == ["mm", "sigmoid", "mm", "mul"] and found.reason is None
    assert found.rest is not None and operators(found.rest) == ["sigmoid", "mul"]
    for others in (
        on_cuda(kept, x, w, w),
        on_cuda(apart, x, x, w, w),
        on_cuda(gated, x, w, (300, 1)),
    ):
        assert [operators(part).count("mm") for part in others] == [1, 1]
    assert len(on_cuda(gated, (4, 3000), (3000, 256), (3000, 256))) == 2


def test_on_cuda_two_convolutions_of_one_image_that_are_combined_are_one_region() -> None:
    def gated(x: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, g, padding=1).sigmoid() * F.conv2d(x, v, padding=1)

    def otherwise(x: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, g, padding=2, dilation=2).sigmoid() * F.conv2d(x, v, padding=1)

    def in_groups(x: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        first, second = (F.conv2d(x, w, padding=1, groups=2) for w in (g, v))
        return first.sigmoid() * second

    def experts(x: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.silu(torch.bmm(x, g)) * torch.bmm(x, v)

    x, w = (4, 16, 32, 32), (24, 16, 3, 3)
    (found,) = on_cuda(gated, x, w, w)
    assert operators(found) == ["convolution", "sigmoid", "convolution", "mul"]
    assert found.reason is None
    assert len(on_cuda(otherwise, x, w, w)) == 2
    assert len(on_cuda(in_groups, x, (24, 8, 3, 3), (24, 8, 3, 3))) == 2
    assert len(on_cuda(gated, x, (4, 16, 3, 3), (4, 16, 3, 3))) == 2
    (found,) = on_cuda(experts, (4, 128, 64), (4, 64, 96), (4, 64, 96))
    assert operators(found).count("bmm") == 2


def test_on_cuda_convolutions_and_products_alone_are_offered() -> None:
    def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, b, padding=1) * 2 + 1)

    image, weight = (8, 16, 56, 56), (32, 16, 3, 3)
    (found,) = on_cuda(block, image, weight, (32,))
    assert operators(found) == ["convolution", "mul", "add", "relu"] and found.reason is None
    (found,) = on_cuda(lambda a, b: a @ b, (512, 300), (300, 256))
    assert operators(found) == ["mm"] and found.reason is None
    (found,) = on_cuda(lambda a, b: (a @ b).sum(1), (512, 300), (300, 256))
    assert operators(found) == ["mm", "sum"] and found.reason is None
    *casts, found = on_cuda(lambda a, b: (a.half() @ b.half()).relu(), (512, 300), (300, 256))
    assert operators(found) == ["mm", "relu"] and found.reason is None
    assert all("mm" not in operators(cast) for cast in casts)
    (head,) = on_cuda(lambda a, b: (a @ b).relu(), (24, 96), (96, 50))
    assert operators(head) == ["mm", "relu"] and head.reason is None


def test_what_no_sketch_covers_is_a_barrier_on_cuda() -> None:
    image, weight = (8, 16, 56, 56), (16, 32, 3, 3)
    assert on_cuda(lambda x, w: F.conv_transpose2d(x, w, stride=2, dilation=2), image, weight) == []
    doubles = on_cuda(lambda a, b: a.double() @ b.double(), (512, 300), (300, 256))
    assert all("mm" not in operators(found) for found in doubles)
    assert on_cuda(lambda x, w: F.conv2d(x, w), (1, 2, 8, 8), (2, 2, 3, 3)) == []  # too small


def test_what_is_beside_a_product_is_offered_for_want_of_a_kernel_for_all() -> None:
    def scores(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = x @ w
        return torch.softmax(product, -1), product.t().amax(0) * y

    (found,) = regions(scores, LARGE, SQUARE, LARGE[:, 0])
    assert found.rest is not None and found.rest.reason is None
    (product,) = (node for node in found.nodes if node.target is torch.ops.aten.mm.default)
    assert product not in found.rest.nodes and product in found.rest.inputs
    assert set(found.rest.nodes) == set(found.nodes) - {product}
    assert found.rest.outputs == found.outputs and found.rest.rest is None


def test_the_rest_of_a_product_reads_views_that_are_made_outside() -> None:
    def halves(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        left, right = (x @ w).split(64, 1)
        return torch.sigmoid(left) * right

    (found,) = regions(halves, LARGE, SQUARE)
    assert found.rest is not None and operators(found.rest) == ["sigmoid", "mul"]
    assert [tuple(n.meta["val"].shape) for n in found.rest.inputs] == [(256, 64)] * 2


def test_what_is_one_operator_or_small_is_no_rest_of_a_product() -> None:
    (alone,) = regions(lambda x, w: torch.relu(x @ w), LARGE, SQUARE)
    (converted,) = regions(lambda x, w: torch.relu(x @ w).double().t(), LARGE, SQUARE)
    assert alone.rest is None and converted.rest is None
    x, w = torch.randn(512, 4096), torch.randn(4096, 1)
    (small,) = regions(lambda x, w: (x @ w).tanh().sum(0), x, w, min_bytes=1 << 16)
    assert small.reason is None and small.rest is None
    found = regions(lambda x, w, v: (x @ w).tanh().exp() + x @ v, LARGE, SQUARE, SQUARE + 1)
    assert [operators(r.rest) if r.rest else [] for r in found] == [[], ["tanh", "exp", "add"]]


def test_a_matmul_of_a_matmul_begins_a_region_of_its_own() -> None:
    found = regions(lambda x, v, w: ((x @ v).tanh() @ w).tanh(), LARGE, SQUARE, SQUARE + 1)
    assert [operators(region) for region in found] == [["mm", "tanh"], ["mm", "tanh"]]


QKV = torch.randn(2, 128, 3, 4, 32).permute(2, 0, 3, 1, 4).unbind(0)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: Any) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **how)


def test_an_attention_is_a_region_of_its_own() -> None:
    def gated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(torch.tanh(q), k, v, is_causal=True) * torch.sigmoid(v)

    first, attention, last = regions(gated, *QKV)
    assert operators(first) == ["tanh"] and operators(last) == ["sigmoid", "mul"]
    assert operators(attention) == ["_scaled_dot_product_flash_attention_for_cpu"]
    assert attention.reason is None and len(attention.inputs) == 3
    assert attention.outputs[0] in last.inputs
    _assert_no_cycle([first, attention, last])


def test_attentions_beside_each_other_are_two_regions() -> None:
    found = regions(lambda q, k, v: attend(q, k, v) + attend(k, q, v), *QKV)
    assert [len(region.inputs) for region in found] == [3, 3, 2]
    _assert_no_cycle(found)


def test_a_mask_of_constants_is_made_outside_of_the_attention() -> None:
    def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        i = torch.arange(128)
        near = (i[:, None] - i).abs() < 9
        return attend(q, k, v, attn_mask=torch.where(near, 0.0, -1e4))

    (found,) = regions(masked, *QKV)
    assert [str(node.target).split(".")[1] for node in found.nodes[:1]] == [
        "_scaled_dot_product_flash_attention_for_cpu"
    ]
    assert len(found.inputs) == 4


def test_attention_in_training_or_half_precision_or_small_is_a_barrier() -> None:
    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v)

    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    assert regions(lambda q, k, v: flash(q, k, v), *QKV) == []
    assert len(regions(plain, *QKV)) == 1
    assert regions(plain, *(x.bfloat16() for x in QKV)) == []
    assert regions(plain, *(x[:, :, :16] for x in QKV)) == []
    assert regions(plain, *(x[..., :12] for x in QKV)) == []


def test_replacing_all_regions_never_makes_a_cycle() -> None:
    def tangled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a = x.exp()
        b = a @ w
        c = a.sin() + b.cos()
        return c @ w + a.tanh() + b.sigmoid()

    for inputs in ((X, W), (LARGE, SQUARE)):
        found = regions(tangled, *inputs)
        _assert_no_cycle(found)
        _assert_no_cycle([region.rest or region for region in found])


def _assert_no_cycle(found: list[Region]) -> None:
    home = {node: number for number, region in enumerate(found) for node in region.nodes}
    for number, region in enumerate(found):
        seen, waiting = set(), list(region.outputs)
        while waiting:
            for user in waiting.pop().users:
                if user not in seen and home.get(user) != number:
                    seen.add(user)
                    waiting += [user, *(found[home[user]].nodes if user in home else ())]
        assert all(home.get(node) != number for node in seen)


def test_work_that_only_a_later_region_needs_moves_there() -> None:
    found = regions(lambda x, w, y: (x @ w) + torch.sigmoid(y) * y, X, W, X)
    assert len(found) == 1 and "add" in operators(found[0]) and "sigmoid" in operators(found[0])


def test_views_on_the_fringe_stay_outside() -> None:
    (found,) = regions(lambda x: (x.view(4, 4, 32).permute(1, 0, 2).exp()).reshape(16, 32), X)
    assert operators(found)[0] == "exp"
    assert found.inputs[0].meta["val"].shape == (4, 4, 32)


def test_an_expanded_input_is_taken_unexpanded() -> None:
    (found,) = regions(lambda x, b: x.exp() + b.expand(16, 32), X, torch.randn(1, 32))
    assert sorted(node.meta["val"].numel() for node in found.inputs) == [32, 512]


def test_a_view_needed_outside_is_put_out_as_what_it_views() -> None:
    def both(x: torch.Tensor, w: torch.Tensor) -> Any:
        h = x.exp()
        v = h.view(4, 128)
        return v.sum(-1), v, h @ w

    (found,) = regions(both, X, W)
    assert sorted(tuple(node.meta["val"].shape) for node in found.outputs) == [(4,), (16, 32)]


def test_a_view_of_an_input_is_no_output() -> None:
    found = regions(lambda x: (x.view(512), x.exp()), X)
    assert [operators(region) for region in found] == [["exp"]]


def test_a_mutation_of_an_input_stays_outside() -> None:
    def step(x: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        running.mul_(0.9).add_(x.mean(0))
        return x - running

    module = torch.func.functionalize(step, remove="mutations_and_views")
    graph = make_fx(module, tracing_mode="fake")(X, torch.zeros(32)).graph
    found = partition(graph)
    assert all("copy_" not in operators(region) for region in found)
    assert any(str(node.target) == "aten.copy_.default" for node in graph.nodes)


def test_regions_do_not_cross_a_mutation_in_the_middle() -> None:
    graph = graph_of(lambda x, y: (x.exp(), y.sin(), x.cos()), X, X)
    nodes = {str(n.target).split(".")[1]: n for n in graph.nodes if n.op == "call_function"}
    x, y = (n for n in graph.nodes if n.op == "placeholder")
    with graph.inserting_before(nodes["cos"]):
        graph.call_function(torch.ops.aten.copy_.default, (x, y)).meta["val"] = x.meta["val"]
    (sine,) = [r for r in partition(graph) if "sin" in operators(r)]
    assert "cos" not in operators(sine)


def mask_of(seeds: torch.Tensor) -> torch.Tensor:
    """As in the graphs that Inductor makes of a dropout."""
    import torch._inductor.inductor_prims

    prims = torch.ops.prims
    seed = prims.inductor_lookup_seed.default(seeds, 0)
    return prims.inductor_random.default([16, 32], seed, "rand") > 0.5


SEEDS = torch.zeros(2, dtype=torch.int64)


def test_masks_that_are_drawn_are_read() -> None:
    (found,) = regions(lambda x, seeds: mask_of(seeds).float() * x.exp(), X, SEEDS)
    assert found.reason is None
    assert operators(found) == ["convert_element_type", "exp", "mul"]
    assert {node.meta["val"].dtype for node in found.inputs} == {torch.float32, torch.bool}


def test_random_numbers_that_a_region_decides_are_left_to_inductor() -> None:
    dropout = torch.ops.aten.native_dropout.default

    def dropped(x: torch.Tensor) -> torch.Tensor:
        return dropout(x.exp(), 0.5, True)[0].sum(-1)

    (found,) = partition(make_fx(dropped, {}, "fake")(X).graph)
    assert found.reason == "random numbers" and "exp" in operators(found)


def test_symbolic_sizes_are_left_to_inductor() -> None:
    found = regions(lambda x: (x * 2).sum(-1), X, tracing="symbolic")
    assert {region.reason for region in found} == {"symbolic sizes"}


def test_small_regions_and_empty_tensors_are_left_to_inductor() -> None:
    (small,) = regions(lambda x: x.exp(), X, min_bytes=10_000)
    assert small.reason == "it moves 4096 bytes, less than 10000"
    (empty,) = regions(lambda x: x.exp(), X[:0])
    assert empty.reason == "an empty tensor"


def test_complex_numbers_are_left_to_inductor() -> None:
    (found,) = regions(lambda x: x * 2, torch.randn(4, dtype=torch.complex64))
    assert found.reason and "complex" in found.reason


def normalised(x: torch.Tensor, running: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
    """A batch norm that keeps for its backward what it needs, and averages of its statistics."""
    variance, mean = torch.var_mean(x, 0, correction=0)
    rate = (variance + 1e-5).rsqrt()
    averages = [0.9 * running + 0.1 * one for one in (mean, variance)]
    return [*averages, mean, rate, (x - mean) * rate, ((x - mean) * rate * scale).relu()]


def test_outputs_that_are_small_beside_others_do_not_count() -> None:
    (found,) = regions(normalised, torch.randn(64, 32), torch.randn(32), torch.randn(32))
    assert found.reason is None and len(found.outputs) == 6
    split = regions(normalised, torch.randn(8, 32), torch.randn(32), torch.randn(32))
    assert len(split) > 1 and all(len(region.outputs) <= 4 for region in split)


def test_a_region_with_too_many_inputs_is_split() -> None:
    found = regions(
        lambda *xs: torch.stack([x.exp() for x in xs]).sum(0),
        *[torch.randn(16, 32) for _ in range(30)],
    )
    assert len(found) > 1
    assert all(len(r.inputs) <= 12 and len(r.outputs) <= 4 for r in found if r.reason is None)
    assert any(region.reason is None for region in found)


def test_constants_are_made_in_each_region_that_needs_them() -> None:
    def masked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(32) < 7
        h = torch.where(mask, x, 0.0)
        return torch.where(mask, h @ w, 0.0)

    found = regions(masked, X, W)
    assert len(found) == 2 and all(len(region.inputs) == 1 for region in found)


def test_several_results_of_one_operator_stay_together() -> None:
    (found,) = regions(lambda x: torch.var_mean(x, -1, keepdim=True)[0] + x.max(-1, True)[1], X)
    assert found.reason is None and len(found.outputs) == 1


def test_viewability_is_what_torch_says() -> None:
    for shape, stride, wanted in [
        ((4, 6), (6, 1), (24,)),
        ((4, 6), (1, 4), (24,)),
        ((4, 6), (12, 1), (2, 2, 3, 2)),
        ((4, 6), (12, 1), (8, 3)),
        ((2, 1, 3), (3, 99, 1), (6, 1)),
        ((4, 4), (0, 1), (16,)),
    ]:
        tensor = torch.empty(200).as_strided(shape, stride)
        try:
            tensor.view(wanted)
            allowed = True
        except RuntimeError:
            allowed = False
        assert viewable(shape, stride, wanted) == allowed, (shape, stride, wanted)


def test_on_cuda_an_attention_in_float32_is_a_region() -> None:
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default

    def attend(*x: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        return efficient(x[0] * 2, x[1], x[2], None, True, dropout)[0] + 1

    shapes = ((2, 4, 256, 64),) * 3
    found = on_cuda(attend, *shapes)
    assert [operators(region) for region in found] == [
        ["mul"], ["_scaled_dot_product_efficient_attention"], ["add"]
    ]  # fmt: skip
    assert found[1].reason is None and found[1].target == "cuda"
    random = on_cuda(lambda *x: attend(*x, dropout=0.1), *shapes)
    assert all("_scaled_dot_product_efficient_attention" not in operators(r) for r in random)


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
def test_on_cuda_an_attention_in_half_precision_is_a_region(name: str) -> None:
    whole = f"_scaled_dot_product_{name}_attention"
    call = getattr(torch.ops.aten, whole).default

    def attend(*x: torch.Tensor, causal: bool = False, result: int = 0) -> torch.Tensor:
        q, k, v = (tensor.bfloat16() for tensor in x)
        if name == "flash":
            return call(q, k, v, 0.0, causal)[result]
        return call(q, k, v, None, True, 0.0, causal)[result]

    def found(*shapes: tuple[int, ...], **how: Any) -> list[list[str]]:
        regions = on_cuda(lambda *x: attend(*x, **how), *shapes)
        return [operators(r) for r in regions if r.reason is None and whole in operators(r)]

    large, shared, fewer = (2, 4, 256, 64), (2, 2, 256, 64), (2, 4, 250, 64)
    assert found(large, large, large, causal=True) == [[whole]]
    assert found(large, shared, shared) == [[whole]]
    assert found(large, large, large, result=1) == []
    assert found(*((2, 4, 256, 264),) * 3) == []
    settled = [[whole]] if name == "efficient" else []
    assert found(large, fewer, fewer, causal=True) == settled


# --- copies before products ---------------------------------------------------------------------------------------

HEADS = (6, 700, 10, 72)


def head_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1)


def test_copies_of_operands_belong_to_the_product() -> None:
    (found,) = on_cuda(head_scores, HEADS, HEADS)
    assert operators(found).count("clone") == 2 and operators(found)[-1] == "bmm"
    assert found.reason is None
    assert [node.meta["val"].stride()[-3:] for node in found.inputs] == [(72, 720, 1), (72, 1, 720)]
    assert found.moved == 4 * (2 * 6 * 700 * 720 + 60 * 700 * 700)


def test_on_the_cpu_copies_are_made_as_before() -> None:
    with FakeTensorMode():
        q, k = torch.empty(HEADS), torch.empty(HEADS)
        graph = make_fx(head_scores, decomposition_table=select_decomp_table())(q, k).graph
    assert [operators(found) for found in partition(graph)][:2] == [["clone"], ["clone"]]


def test_a_copy_that_is_needed_elsewhere_is_made_once() -> None:
    def both(x: torch.Tensor, w: torch.Tensor) -> Any:
        tokens = x.permute(0, 2, 1).clone(memory_format=torch.contiguous_format)
        return tokens, tokens.view(-1, 40) @ w

    first, second = on_cuda(both, (8, 40, 900), (40, 60))
    assert operators(first) == ["clone"] and operators(second) == ["mm"]


def test_products_of_the_same_copy_all_read_through_it() -> None:
    def two(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
        tokens = x.permute(0, 2, 1).reshape(-1, 40)
        return torch.relu(tokens @ v), torch.exp(tokens @ w)

    found = on_cuda(two, (8, 40, 900), (40, 60), (40, 50))
    assert [operators(region) for region in found] == [
        ["clone", "view", "mm", "relu"], ["clone", "view", "mm", "exp"]
    ]  # fmt: skip
    assert all(region.reason is None and len(region.inputs) == 2 for region in found)


def test_a_copy_is_stored_by_what_makes_it_unless_that_makes_more() -> None:
    def alone(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).permute(0, 2, 1).reshape(-1, 40) @ w

    found = on_cuda(alone, (8, 40, 900), (40, 60))
    assert [operators(region)[-1] for region in found] == ["clone", "mm"]

    def halves(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.relu(x)
        half = torch.ops.aten.slice.Tensor(h, 1, 0, 20)
        return half.permute(0, 2, 1).reshape(-1, 20) @ w * h.sum()

    found = on_cuda(halves, (8, 40, 900), (20, 60))
    assert "clone" not in operators(found[0]) and "clone" in operators(found[-1])
    _assert_no_cycle_beyond_copies(found)


def test_what_a_product_makes_is_stored_as_the_next_one_reads_it() -> None:
    def chain(p: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        heads = (p @ v).view(6, 10, 300, 72).permute(0, 2, 1, 3)
        return heads.reshape(1800, 720) @ w

    found = on_cuda(chain, (60, 300, 300), (60, 300, 72), (720, 500))
    assert [operators(region)[-1] for region in found] == ["clone", "mm"]
    assert operators(found[0])[0] == "bmm"


def test_padding_with_zeros_belongs_to_the_convolution() -> None:
    def causal(x: torch.Tensor, w: torch.Tensor, *, value: float = 0.0) -> torch.Tensor:
        return F.relu(F.conv1d(F.pad(x, (6, 0), value=value), w, dilation=3))

    shapes = (8, 40, 900), (40, 40, 3)
    (found,) = on_cuda(lambda x, w: causal(x, w), *shapes)
    assert operators(found) == ["constant_pad_nd", "convolution", "relu"]
    ones = on_cuda(lambda x, w: causal(x, w, value=1.0), *shapes)
    assert [operators(region) for region in ones] == [["constant_pad_nd"], ["convolution", "relu"]]


def test_padding_before_products_and_depthwise_convolutions_is_made() -> None:
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 5)) @ w

    def depthwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv1d(F.pad(x, (6, 0)), w, groups=40)

    for function, shapes in (
        (product, ((700, 95), (100, 60))),
        (depthwise, ((8, 40, 9000), (40, 1, 7))),
    ):
        found = on_cuda(function, *shapes)
        assert len(found) == 2 and operators(found[0]) == ["constant_pad_nd"]


def test_a_copy_whose_lines_lie_across_the_products_is_made() -> None:
    def heads_innermost(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q.permute(0, 3, 1, 2) @ k.permute(0, 3, 2, 1)

    found = on_cuda(heads_innermost, (6, 700, 72, 10), (6, 700, 72, 10))
    assert sorted(operators(region)[0] for region in found) == ["bmm", "clone", "clone"]


def test_nothing_is_read_through_a_copy_past_a_mutation() -> None:
    def early(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 1).reshape(-1, 40) @ w

    with FakeTensorMode():
        inputs = [torch.empty(shape, device="cuda") for shape in ((8, 40, 900), (40, 60))]
        graph = make_fx(early, decomposition_table=select_decomp_table())(*inputs).graph
    (product,) = (n for n in graph.nodes if n.target is torch.ops.aten.mm.default)
    x = next(iter(graph.nodes))
    with graph.inserting_before(product):
        graph.call_function(torch.ops.aten.zero_.default, (x,)).meta["val"] = x.meta["val"]
    assert [operators(region) for region in partition(graph)] == [["clone"], ["mm"]]


def lower(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.tril(x) @ y


def test_a_mask_that_leaves_a_triangle_belongs_to_the_product() -> None:
    (found,) = on_cuda(lower, (700, 700), (700, 300))
    assert operators(found)[-2:] == ["where", "mm"] and len(found.inputs) == 2

    def with_ones(x: torch.Tensor) -> torch.Tensor:
        factor = torch.tril(x, -1) + torch.eye(700, device="cuda")
        return factor @ factor.T

    (found,) = on_cuda(with_ones, (700, 700))
    assert operators(found)[-3:] == ["add", "permute", "mm"] and len(found.inputs) == 1
    assert found.reason is None


def test_a_mask_is_made_by_itself_where_it_is_needed_or_made_elsewhere_or_spares_little() -> None:
    def needed(x: torch.Tensor, y: torch.Tensor) -> Any:
        masked = torch.tril(x)
        return masked, masked @ y

    def made(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tril(torch.relu(x)) @ y

    def addend(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.addmm(torch.tril(x), y, y.T)

    def twice(x: torch.Tensor, y: torch.Tensor) -> Any:
        masked = torch.tril(x)
        return masked @ y, masked.T @ y

    for function in (needed, made, addend, twice):
        found = on_cuda(function, (700, 700), (700, 300))
        assert [operators(region)[-1] for region in found][-1] == "mm" or function is addend
        assert all(
            "where" not in operators(region) for region in found if "mm" in operators(region)
        )
    assert len(on_cuda(lower, (700, 700), (700, 20))) == 2


def test_long_chains_are_not_looked_through_for_masks() -> None:
    graph = Graph()
    node = graph.placeholder("x")
    for _ in range(3000):
        node = graph.call_function(torch.ops.aten.mul.Tensor, (node, node))
    assert masked_operand(node) is None


def _assert_no_cycle_beyond_copies(found: list[Region]) -> None:
    """A copy that several products read through has no home; what is put out has one."""
    made = [{node for node in region.nodes if node in region.outputs} for region in found]
    assert len({node for nodes in made for node in nodes}) == sum(map(len, made))
    _assert_no_cycle(found)


def test_on_cuda_sorts_and_selections_are_regions_of_their_own() -> None:
    def ordered(x: torch.Tensor) -> Any:
        return torch.sort(x * 2).values + 1, torch.topk(x, 8, dim=0)[1] * 2

    found = on_cuda(ordered, (64, 100))
    assert sorted(operators(region) for region in found) == [
        ["add"], ["mul"], ["mul"], ["sort"], ["topk"]
    ]  # fmt: skip
    assert all(region.reason is None for region in found)
    (one,) = on_cuda(lambda x: tuple(torch.sort(x, dim=1)), (64, 100))
    assert len(one.outputs) == 2 and one.moved == 64 * 100 * (4 + 4 + 8)


def test_sorts_without_sketches_are_barriers() -> None:
    assert not regions(lambda x: torch.sort(x)[0], torch.randn(64, 100))
    assert not on_cuda(lambda x: torch.sort(x)[0], (4, 9000))
    assert not on_cuda(lambda x: torch.sort(x)[0], (4, 10))
    assert not on_cuda(lambda x: torch.topk(x, 300)[0], (4, 9000))
    assert not on_cuda(lambda x: torch.topk(x, 3, sorted=False)[0], (4, 9000))


def scattered(x: torch.Tensor, i: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    return into.scatter_add(0, i.unsqueeze(1).expand_as(x), x * 2).relu()


def test_on_cuda_a_scatter_is_a_region_with_what_makes_its_values_and_views_of_its_index() -> None:
    with FakeTensorMode():
        x, into = torch.empty(900, 64, device="cuda"), torch.empty(50, 64, device="cuda")
        index = torch.empty(900, dtype=torch.int64, device="cuda")
        found = regions(scattered, x, index, into)
        half = regions(scattered, x.half(), index, into.half())
    scatter, *others = found
    assert [operators(region) for region in others] == [["relu"]]
    assert operators(scatter) == ["unsqueeze", "expand", "mul", "scatter_add"]
    assert {tuple(n.meta["val"].shape) for n in scatter.inputs} == {(50, 64), (900,), (900, 64)}
    assert all(region.reason is None for region in found)
    _assert_no_cycle(found)
    assert [operators(region) for region in half] == [["mul"], ["relu"]]


def edges(how: Callable[..., Any], weights: int = 1) -> list[list[str]]:
    """Operators of the regions of messages along 900 edges, which ``how`` makes of rows and weights."""

    def model(*given: torch.Tensor) -> Any:
        into, x, source, target, *w = given
        sent, *others = how(torch.ops.aten.index(x, [source]), *w)
        return into.index_add(0, target, sent), *others

    with FakeTensorMode():
        into, x = (torch.empty(n, 4, 16, device="cuda") for n in (50, 90))
        source, target = (torch.empty(900, dtype=torch.int64, device="cuda") for _ in range(2))
        given = [torch.empty(900, 4, device="cuda") for _ in range(weights)]
        found = regions(model, into, x, source, target, *given)
    _assert_no_cycle(found)
    return [operators(region) for region in found]


def test_on_cuda_messages_are_made_where_they_are_added_up() -> None:
    weighed = edges(lambda x, w: [x * (2 * w).unsqueeze(-1)])
    assert weighed == [["index", "mul", "unsqueeze", "mul", "index_put"]]
    apart = edges(lambda x, w: [x * torch.exp(w).unsqueeze(-1)])  # once for each of the 16
    assert apart == [["index", "mul", "index_put"], ["exp"]]
    summed = edges(lambda x, w: [x - x.mean(-1, keepdim=True)])
    assert summed == [["index", "mean", "sub"], ["index_put"]]
    many = edges(lambda x, *w: [x * sum(w).unsqueeze(-1)], weights=9)
    assert many == [["index", *["add"] * 9, "unsqueeze", "mul"], ["index_put"]]


def test_messages_of_products_are_made_by_the_products() -> None:
    def gated(into: torch.Tensor, target: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        x, filters, gates = given
        return into.index_add(0, target, torch.sigmoid(x @ filters) * F.softplus(x @ gates))

    def weighed(into: torch.Tensor, target: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        x, source, w, edges, weights = given
        sent = torch.ops.aten.index(x.relu(), [source]) * torch.sigmoid(edges @ w)
        return into.index_add(0, target, sent * weights)

    with FakeTensorMode():
        index = [torch.empty(900, dtype=torch.int64, device="cuda") for _ in range(2)]
        into, x, w = (torch.empty(n, 64, device="cuda") for n in (50, 900, 64))
        both = regions(gated, into, index[0], x, w, torch.empty_like(w))
        given = (x, index[1], w, torch.empty_like(x), torch.empty(900, 1, device="cuda"))
        one = regions(weighed, into, index[0], *given)
    assert [operators(r)[-1] for r in both] == ["mul", "index_put"]
    product = ["relu", "index", "mm", "sigmoid", "mul", "mul"]
    assert [operators(r) for r in one] == [product, ["index_put"]]


def test_messages_that_are_needed_elsewhere_are_made_once() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        sent = x * w.unsqueeze(-1)
        return [sent, sent.sum(0)]

    assert edges(twice) == [["index", "mul", "sum"], ["index_put"]]


def test_tables_that_messages_are_read_from_are_made_once_for_each_row() -> None:
    def gated(into: torch.Tensor, x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        filters, gates, source, target = given
        table = torch.sigmoid(x @ filters) * (x @ gates)
        return into.index_add(0, target, torch.ops.aten.index(table, [source]) * 2)

    def differing(into: torch.Tensor, x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        *_, source, target = given
        table = torch.sigmoid(x)
        sent = torch.ops.aten.index(table, [source]) - torch.ops.aten.index(table, [target])
        return into.index_add(0, target, sent.relu())

    with FakeTensorMode():
        source, target = (torch.empty(900, dtype=torch.int64, device="cuda") for _ in range(2))
        into, x, w = (torch.empty(n, 64, device="cuda") for n in (50, 90, 64))
        found = [regions(f, into, x, w, w.clone(), source, target) for f in (gated, differing)]
    sent = [["mm", "sigmoid", "mm", "mul"], ["index", "mul", "index_put"]]
    assert [operators(r) for r in found[0]] == sent
    sent = [["sigmoid"], ["index", "index", "sub", "relu", "index_put"]]
    assert [operators(r) for r in found[1]] == sent


def test_messages_of_what_kernels_cannot_read_are_made_beside_the_scatter() -> None:
    def weighed(into: torch.Tensor, target: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        x, weight = given
        return into.index_add(0, target, x.float() * weight)

    with FakeTensorMode():
        target = torch.empty(900, dtype=torch.int64, device="cuda")
        into, x = (torch.empty(n, 64, device="cuda") for n in (50, 900))
        for given in ((x, torch.empty(())), (x.to(torch.float8_e5m2), x)):
            *_, last = regions(weighed, into, target, *given)
            assert operators(last) == ["index_put"] and last.reason is None


def test_bags_of_one_length_are_fused_on_cuda_and_left_on_the_cpu() -> None:
    def bags(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(index, table, mode="mean").relu()

    sizes = ((90, 64), (20, 7))
    with FakeTensorMode():
        table, index = (
            torch.empty(sizes[0], device="cuda"),
            torch.zeros(sizes[1], dtype=torch.int64, device="cuda"),
        )
        (found,) = regions(bags, table, index)
    assert operators(found)[-2:] == ["_embedding_bag_forward_only", "relu"]
    (left,) = regions(bags, torch.randn(sizes[0]), torch.zeros(sizes[1], dtype=torch.int64))
    assert operators(left) == ["relu"]
