"""Drawn inputs and the bounds of integers."""

from __future__ import annotations

import math

import pytest
import torch
from judge_kit import spec

from sandbox.accuracy.input_bounds import input_bounds
from sandbox.accuracy.inputs import BEYOND, DISTRIBUTIONS, NOT_NEGATIVE, make_inputs
from sandbox.judge.input_sets import _restrided
from sandbox.task.specs import TensorSpec
from sandbox.task.task import Arg, InputRef, Node, NodeRef, Task

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
LAYOUTS = {
    "contiguous": TensorSpec("float32", (4, 6), (6, 1)),
    "transposed": TensorSpec("float32", (4, 6), (1, 4)),
    "expanded": TensorSpec("float32", (4, 6), (0, 1)),
    "gaps": TensorSpec("float32", (4, 6), (12, 2)),
    "channels last": TensorSpec("float32", (2, 3, 4, 5), (60, 1, 15, 3)),
    "scalar": TensorSpec("float32", (), ()),
    "empty": TensorSpec("float32", (0, 3), (3, 1)),
    "sliding": TensorSpec("float32", (4, 6), (1, 1)),
}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_distribution_gives_every_dtype(distribution: str, dtype: str) -> None:
    (tensor,) = make_inputs([spec(40, 70, dtype=dtype)], 3, distribution)
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.shape == (40, 70)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_shapes_and_strides_are_honoured(name: str, distribution: str) -> None:
    wanted = LAYOUTS[name]
    (tensor,) = make_inputs([wanted], 3, distribution)
    assert (tuple(tensor.shape), tensor.stride()) == (wanted.shape, wanted.stride)


def test_a_seed_gives_the_same_values_and_another_seed_others() -> None:
    one, again, other = (make_inputs([spec(100)], seed, "normal")[0] for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_distributions_are_what_they_say() -> None:
    def draw(name: str) -> torch.Tensor:
        return make_inputs([spec(64, 256)], 11, name)[0]

    assert draw("normal").std().item() == pytest.approx(1, abs=0.1)
    assert 0 <= draw("uniform").min() <= draw("uniform").max() < 1
    assert draw("large").std() > 500
    assert draw("small").std() < 0.01
    assert draw("constant").unique().numel() == 1
    assert draw("constant").sum(dtype=torch.float32) == draw("constant").double().sum()
    assert not draw("zeros").any()
    edges = draw("edges")
    assert edges.isnan().any()
    assert edges.isinf().any()
    assert edges[32:].isfinite().all()
    assert draw("offset").mean().item() == pytest.approx(1000, abs=1)
    assert draw("sparse").count_nonzero() < 64 * 256 / 50
    assert draw("sparse").flatten()[-1] == 7.5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_of_huge_numbers_in_half_precision_there_is_one(dtype: str) -> None:
    for seed in range(5):
        (edges,) = make_inputs([TensorSpec(dtype, (512, 512), (512, 1))], seed, "edges")
        finite = edges[edges.isfinite()].double().abs()
        assert (finite > 100).sum() == 1


def test_large_numbers_in_float16_have_exponentials_that_overflow_and_products_that_do_not() -> (
    None
):
    x, w = (TensorSpec("float16", (256, 256), (256, 1)) for _ in range(2))
    for seed in range(5):
        a, b = make_inputs([x, w], seed, "large")
        assert a.float().exp().isinf().any(1).float().mean() > 0.2
        assert (a.float() @ b.float()).half().isfinite().float().mean() > 0.99


def test_edges_hold_huge_numbers_whose_sum_stays_finite() -> None:
    (edges,) = make_inputs([spec(512, 512)], 5, "edges")
    finite = edges[edges.isfinite()].double()
    assert finite.abs().max() > 1e16
    assert math.isfinite(finite.abs().sum().float())


def test_integers_stay_within_their_bounds_and_booleans_are_random() -> None:
    for distribution in DISTRIBUTIONS:
        whole, flags = make_inputs(
            [spec(500, dtype="int64"), spec(500, dtype="bool")], 1, distribution, [(3, 9), None]
        )
        assert whole.min() >= 3
        assert whole.max() < 9
        assert flags.any()
        assert not flags.all()


def test_an_unknown_distribution_is_an_error() -> None:
    with pytest.raises(KeyError):
        make_inputs([spec(2)], 1, "cauchy")


def task(inputs: tuple[TensorSpec, ...], output: TensorSpec, *nodes: tuple[str, Arg]) -> Task:
    made = tuple(Node(op, args) for op, args in nodes)  # type: ignore[arg-type]
    return Task("cpu", inputs, made, (NodeRef(len(nodes) - 1),), (output,))


INDICES = spec(5, dtype="int64")


@pytest.mark.parametrize(
    ("op", "args", "output", "bound"),
    [
        (
            "aten.embedding.default",
            {"weight": InputRef(0), "indices": InputRef(1)},
            spec(5, 20),
            (0, 10),
        ),
        (
            "aten.index.Tensor",
            {"self": InputRef(0), "indices": (None, InputRef(1))},
            spec(10, 5),
            (0, 20),
        ),
        (
            "aten.index_select.default",
            {"self": InputRef(0), "dim": -1, "index": InputRef(1)},
            spec(10, 5),
            (0, 20),
        ),
    ],
)
def test_an_index_is_bounded_by_what_it_points_into(
    op: str, args: dict[str, Arg], output: TensorSpec, bound: tuple[int, int]
) -> None:
    made = Task("cpu", (spec(10, 20), INDICES), (Node(op, args),), (NodeRef(0),), (output,))
    assert input_bounds(made) == (None, bound)


def test_bags_of_a_table_all_begin_at_its_first_index() -> None:
    args: dict[str, Arg] = {"weight": InputRef(0), "indices": InputRef(1), "offsets": InputRef(2)}
    node = Node("aten._embedding_bag_forward_only.default", args)
    inputs = (spec(10, 20), INDICES, spec(3, dtype="int64"))
    made = Task("cpu", inputs, (node,), (NodeRef(0, 0),), (spec(3, 20),))
    assert input_bounds(made) == (None, (0, 10), (0, 1))


def test_an_index_is_followed_through_views_and_masks() -> None:
    made = Task(
        "cpu",
        (spec(4, 30), spec(4, dtype="int64")),
        (
            Node("aten.ne.Scalar", {"self": InputRef(1), "other": -100}),
            Node("aten.full.default", {"size": (), "fill_value": 0}),
            Node(
                "aten.where.self",
                {"condition": NodeRef(0), "self": InputRef(1), "other": NodeRef(1)},
            ),
            Node("aten.unsqueeze.default", {"self": NodeRef(2), "dim": 1}),
            Node("aten.gather.default", {"self": InputRef(0), "dim": 1, "index": NodeRef(3)}),
        ),
        (NodeRef(4),),
        (spec(4, 1),),
    )
    assert input_bounds(made) == (None, (0, 30))


def test_an_index_that_is_computed_with_gets_the_safe_range() -> None:
    made = Task(
        "cpu",
        (spec(4, 30), spec(4, 1, dtype="int64")),
        (
            Node("aten.mul.Tensor", {"self": InputRef(1), "other": 3}),
            Node("aten.gather.default", {"self": InputRef(0), "dim": 1, "index": NodeRef(0)}),
        ),
        (NodeRef(1),),
        (spec(4, 1),),
    )
    assert input_bounds(made) == (None, (0, 2))


def test_integers_that_are_only_computed_with_get_a_wide_range() -> None:
    node = Node("aten.add.Tensor", {"self": InputRef(0), "other": InputRef(1)})
    whole = spec(4, dtype="int32")
    made = Task("cpu", (whole, whole), (node,), (NodeRef(0),), (whole,))
    assert input_bounds(made) == ((-1000, 1000), (-1000, 1000))


def test_divisors_are_never_zero() -> None:
    whole = spec(4, dtype="int32")
    args: dict[str, Arg] = {"self": InputRef(0), "other": InputRef(1), "rounding_mode": "floor"}
    made = Task(
        "cpu", (whole, whole), (Node("aten.div.Tensor_mode", args),), (NodeRef(0),), (whole,)
    )
    bound = input_bounds(made)[1]
    assert bound is not None
    assert bound[0] > 0


def test_what_roots_are_taken_of_is_not_negative_but_beyond_their_domain() -> None:
    made = Task(
        "cpu",
        (spec(9, 30), spec(30), spec(30)),
        (
            Node("aten.add.Tensor", {"self": InputRef(1), "other": 1e-5}),
            Node("aten.sqrt.default", {"self": NodeRef(0)}),
            Node("aten.unsqueeze.default", {"self": NodeRef(1), "dim": 0}),
            Node("aten.mul.Tensor", {"self": InputRef(0), "other": NodeRef(2)}),
            Node("aten.add.Tensor", {"self": NodeRef(3), "other": InputRef(2)}),
        ),
        (NodeRef(4),),
        (spec(9, 30),),
    )
    bounds = input_bounds(made)
    assert bounds == (None, NOT_NEGATIVE, None)
    for distribution in DISTRIBUTIONS:
        x, variance, _ = make_inputs(made.inputs, 3, distribution, bounds)
        if distribution not in BEYOND:
            assert (variance >= 0).all(), distribution
        elif distribution == "edges":
            assert (variance < 0).any()
        if distribution == "normal":
            assert (x < 0).any()


@pytest.mark.parametrize(
    ("node", "root"),
    [
        (Node("aten.pow.Tensor_Scalar", {"self": InputRef(0), "exponent": 0.5}), True),
        (Node("aten.pow.Tensor_Scalar", {"self": InputRef(0), "exponent": 2}), False),
        (Node("aten.pow.Tensor_Scalar", {"self": InputRef(0), "exponent": 3.0}), False),
        (Node("aten.log.default", {"self": InputRef(0)}), True),
        (Node("aten.exp.default", {"self": InputRef(0)}), False),
    ],
)
def test_which_operators_are_roots(node: Node, root: bool) -> None:
    made = Task("cpu", (spec(5),), (node,), (NodeRef(0),), (spec(5),))
    assert input_bounds(made) == (NOT_NEGATIVE if root else None,)


@pytest.mark.parametrize("shift", [1.0, -1e-5])
def test_what_is_in_the_domain_only_after_a_shift_keeps_its_sign(shift: float) -> None:
    """relu(x) * log(x + 1): what a kernel does between -1 and 0 has to be seen."""
    made = Task(
        "cpu",
        (spec(5),),
        (
            Node("aten.add.Tensor", {"self": InputRef(0), "other": shift}),
            Node("aten.log.default", {"self": NodeRef(0)}),
        ),
        (NodeRef(1),),
        (spec(5),),
    )
    assert input_bounds(made) == (None,)


def test_a_part_of_an_input_says_nothing_of_the_rest() -> None:
    made = Task(
        "cpu",
        (spec(5),),
        (
            Node("aten.slice.Tensor", {"self": InputRef(0), "dim": 0, "start": 0, "end": 2}),
            Node("aten.sqrt.default", {"self": NodeRef(0)}),
        ),
        (NodeRef(1),),
        (spec(2),),
    )
    assert input_bounds(made) == (None,)


def test_a_difference_may_be_negative() -> None:
    made = Task(
        "cpu",
        (spec(5),),
        (
            Node("aten.sub.Tensor", {"self": InputRef(0), "other": 1.0}),
            Node("aten.log.default", {"self": NodeRef(0)}),
        ),
        (NodeRef(1),),
        (spec(5),),
    )
    assert input_bounds(made) == (None,)


def test_recorded_values_are_laid_out_as_the_task_says_expanded_or_not() -> None:
    value = torch.randn(1, 3, 4, 5).expand(6, 3, 4, 5)
    for like in (value, torch.empty_strided((6, 3, 4, 5), (70, 21, 5, 1))):
        found = _restrided(value.contiguous(), like)
        assert torch.equal(found, value) and found.stride() == like.stride()
