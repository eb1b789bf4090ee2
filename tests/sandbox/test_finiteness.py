"""What is not finite by chance, and what is not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sandbox.accuracy.finiteness import is_finite, most
from sandbox.accuracy.nearby import several
from sandbox.accuracy.rule import Draw, compare_draws

ROWS, LENGTH = 1 << 16, 48
NAN = float("nan")


def rows() -> torch.Tensor:
    """Of many rows the first 200 sum to a few roundings, the others to about three."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, LENGTH, generator=generator)
    left = torch.randn(ROWS, generator=generator, dtype=torch.float64) * 1e-5
    x[:, -1] += (left - x.double().sum(1)).float()
    x[200:, 0] += 3
    return x


def logarithm(x: torch.Tensor, step: int = 1) -> torch.Tensor:
    """Of each row's sum, the order of which depends on the step."""
    total = torch.zeros(len(x), dtype=x.dtype)
    for first in range(step):
        part = torch.zeros_like(total)
        for column in range(first, LENGTH, step):
            part = part + x[:, column]
        total = total + part
    return total.log()


def judged(found: torch.Tensor, x: torch.Tensor, others: Sequence[Draw] = ()) -> str:
    def pairs() -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        for (near,) in several([x]):
            yield [logarithm(near)], [logarithm(near.double())]

    own = Draw([found], [logarithm(x)], [logarithm(x.double())])
    return compare_draws([*others, own], pairs).reason


def test_signs_that_rounding_decides_are_chance() -> None:
    x = rows()
    found = logarithm(x, step=8)
    assert bool((found.isfinite() != logarithm(x).isfinite()).any())
    assert judged(found, x) == ""
    assert (
        "not finite in other places"
        in compare_draws([Draw([found], [logarithm(x)], [logarithm(x.double())])]).reason
    )


@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_a_place_that_is_certain_is_no_chance(value: float) -> None:
    x = rows()
    found = logarithm(x, step=8)
    assert bool(logarithm(x)[-1].isfinite())
    found[-1] = value
    assert "not finite" in judged(found, x)


def test_more_places_than_eagers_are_no_chance() -> None:
    x = rows()
    found = logarithm(x)
    found[:200] = NAN
    assert "not finite" in judged(found, x)


def nearest(x: torch.Tensor, codes: torch.Tensor, half: int) -> torch.Tensor:
    """Distances to the nearest code: NaN where the squares of equal vectors cancel to less than nothing."""
    products = x[:, :half] @ codes[:, :half].t() + x[:, half:] @ codes[:, half:].t()
    squares = x.square().sum(1, keepdim=True) - 2 * products + codes.square().sum(1)
    return squares.sqrt().amin(1)


def test_distances_of_equal_vectors_are_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(64, 96, generator=generator)
    x = torch.cat([codes, torch.randn(4000, 96, generator=generator)])

    def judge(found: torch.Tensor) -> str:
        def nearby() -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
            for a, b in several([x, codes]):
                yield [nearest(a, b, 0)], [nearest(a.double(), b.double(), 0)]

        draw = Draw([found], [nearest(x, codes, 0)], [nearest(x.double(), codes.double(), 0)])
        return compare_draws([draw], nearby).reason

    found = nearest(x, codes, 40)
    other = found.isnan() != nearest(x, codes, 0).isnan()
    assert int(other.sum()) > 8 and not bool(other[64:].any())
    assert judge(found) == ""
    found[2000] = NAN
    assert "not finite" in judge(found)


def test_where_eager_is_as_the_oracle_there_is_no_chance() -> None:
    x = rows()
    x[:200, 0] += 3
    found = logarithm(x, step=8)
    assert judged(found, x) == ""
    found[3] = NAN
    assert "not finite" in judged(found, x)


def test_places_of_draws_that_nothing_is_nearby_of_are_no_chance() -> None:
    x, y = rows(), rows().flip(0).contiguous()
    other = Draw([logarithm(y, step=8)], [logarithm(y)], [logarithm(y.double())])
    assert "not finite" in judged(logarithm(x, step=8), x, [other])


def spoilt(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Products, and roots of what rounding leaves of one."""
    left = (1 - (x + y).softmax(1).sum(1)).sqrt()
    return torch.cat([(x * y).reshape(-1), left])


def spoilt_judged(dtype: torch.dtype, places: slice, value: float, draws: int = 3) -> str:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2000, 16, generator=generator).to(dtype) for _ in range(2))
    eager, oracle = spoilt(x, y), spoilt(x.double(), y.double())
    found = eager.clone()
    found[places] = value

    def nearby() -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        for a, b in itertools.islice(several([x, y]), draws):
            yield [spoilt(a, b)], [spoilt(a.double(), b.double())]

    return compare_draws([Draw([found], [eager], [oracle])], nearby).reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("places", [slice(0, 1), slice(100, 120)])
def test_products_are_certain_in_every_precision(dtype: torch.dtype, places: slice) -> None:
    assert "not finite" in spoilt_judged(dtype, places, NAN)


def test_all_looks_are_needed() -> None:
    roots = slice(2000 * 16, 2000 * 16 + 3)
    assert spoilt_judged(torch.float32, roots, NAN) == ""
    assert "not finite" in spoilt_judged(torch.float32, roots, NAN, draws=2)
    assert "not finite" in spoilt_judged(torch.float32, roots, NAN, draws=0)


def hidden(beyond: bool, value: float) -> str:
    """One place that is NaN whatever rounding does, beside some that eager itself varies in."""
    x = rows()
    x[0, 3] = NAN
    found = logarithm(x)
    found[0] = value

    def nearby() -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        for (near,) in several([x]):
            yield [logarithm(near)], [logarithm(near.double())]

    draw = Draw([found], [logarithm(x)], [logarithm(x.double())], beyond=beyond)
    return compare_draws([draw], nearby).reason


@pytest.mark.parametrize("beyond", [True, False])
def test_a_certain_nan_is_not_hidden_among_uncertain_ones(beyond: bool) -> None:
    assert "not finite" in hidden(beyond, 123.0)


def test_numbers_in_place_of_nan_are_held_to_those_nearby() -> None:
    x = rows()
    oracle, looks = logarithm(x.double()), [logarithm(near) for (near,) in several([x])]
    both = logarithm(x).isnan() & oracle.isnan()
    place = int((both & torch.stack(looks).isfinite().any(0)).nonzero()[0])
    for value, right in [(-13.0, True), (-1e6, False)]:
        found = logarithm(x)
        found[place] = value
        assert (judged(found, x) == "") is right


def test_without_own_places_none_is_allowed_and_with_few_a_few() -> None:
    assert [most(expected) for expected in (0, 0.5, 20, 64)] == [0, 2, 33, 88]


def test_where_eager_alone_is_not_finite_only_gross_errors_count() -> None:
    oracle = torch.cat(
        [torch.linspace(1, 2, 1000, dtype=torch.float64) * 1e12, torch.ones(9000).double()]
    )
    eager = oracle.float()
    eager[:1000] = NAN

    def reason(error: float) -> str:
        found = oracle.float()
        found[:1000] *= 1 + error
        return compare_draws([Draw([found], [eager], [oracle])]).reason

    assert reason(3e-6) == ""
    assert "on values of size" in reason(1e-2)


def test_a_few_elements_that_eager_lost_are_held_against_gross_errors_too() -> None:
    oracle = torch.tensor([3.0, 4.0], dtype=torch.float64)
    eager = torch.full((2,), NAN)
    assert compare_draws([Draw([oracle.float()], [eager], [oracle])]).passes
    assert not compare_draws([Draw([torch.tensor([3.0, 4.1])], [eager], [oracle])]).passes


def products_beside_roots(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Products, the smallest of which vary by much of themselves, and roots of what rounding leaves of nothing."""
    return torch.cat([(x @ w).reshape(-1), (1 - x.softmax(1).sum(1)).sqrt()])


@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf")])
def test_noise_in_one_part_of_an_output_excuses_nothing_in_another(value: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 256, generator=generator)
    w = torch.randn(256, 200, generator=generator)
    eager, exact = products_beside_roots(x, w), products_beside_roots(x.double(), w.double())
    products = eager[: 300 * 200].abs()
    found = eager.clone()
    found[: 300 * 200][(products > 1e-4) & (products < 2e-3)] = value
    assert 0 < int((~found[: 300 * 200].isfinite()).sum()) < 20

    def pairs() -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        for near, own in several([x, w]):
            made = products_beside_roots(near, own)
            yield [made], [products_beside_roots(near.double(), own.double())]

    assert compare_draws([Draw([eager.clone()], [eager], [exact])], pairs).reason == ""
    reason = compare_draws([Draw([found], [eager], [exact])], pairs).reason
    assert "not finite in other places" in reason


def test_an_infinity_that_nothing_gave_is_no_chance() -> None:
    """Where a logarithm goes to NaN by chance; minus infinity is that of nothing, which some rows sum to."""
    x = rows()
    eager = logarithm(x)
    found = eager.clone()
    at = int((~eager[:200].isfinite()).nonzero()[0])
    found[at] = float("inf")
    assert "not finite in other places" in judged(found, x)


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_not_finite_nearby_is_left_out_and_the_rest_counts(place: int) -> None:
    """place: in eager's results or in the oracle's."""
    draws = torch.Generator().manual_seed(0)
    oracle = torch.randn(90_000, generator=draws, dtype=torch.float64)
    noise = 1 + torch.randn(90_000, generator=draws, dtype=torch.float64) * 1e-5
    eager, found, near = ((oracle * noise**times).float() for times in (1, 3, 10))

    def allowed(*nearby: torch.Tensor) -> float:
        pairs = [([nearby[0]], [nearby[1]])] if nearby else []
        report = compare_draws([Draw([found], [eager], [oracle])], lambda: iter(pairs))
        return report.outputs[0].rms_allowed

    spoilt, clean = [near.clone(), oracle.clone()], [near.clone(), oracle.clone()]
    spoilt[place][7] = torch.inf
    for tensor in clean:
        tensor[7] = 0.0
    assert allowed() < allowed(*spoilt) == pytest.approx(allowed(*clean), rel=1e-4)


class _Copies(TorchDispatchMode):
    """Notes the largest tensor that an operator makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.is_floating_point() and not func.is_view:
            self.elements = max(self.elements, made.numel())
        return made


def test_a_large_tensor_that_is_only_transposed_is_looked_at_without_a_copy_of_it() -> None:
    whole = torch.ones(8, 1 << 24, dtype=torch.float16)
    with _Copies() as copies:
        assert is_finite(whole.t()) and is_finite(whole)
    assert copies.elements < whole.numel()
    whole[7, -1] = torch.inf
    assert not is_finite(whole.t())


def test_what_lies_between_the_elements_is_not_looked_at() -> None:
    whole = torch.ones(6, 6)
    whole[:, 3] = torch.nan
    assert is_finite(whole[:, :3]) and not is_finite(whole[:, 1:4])
    assert is_finite(torch.ones(3, 1).expand(3, 5)) and is_finite(torch.ones(0, 3))
