"""The accuracy contract on hand-made tensors, with plausible wrong results as negative controls."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sandbox.accuracy import size_groups
from sandbox.accuracy.error_pool import ErrorPool
from sandbox.accuracy.metadata import check_metadata
from sandbox.accuracy.nearby import moved, several, while_there_is_room
from sandbox.accuracy.rule import Comparison, Draw, Nearby, compare, compare_draws
from sandbox.accuracy.size_groups import raise_tops
from sandbox.task.specs import TensorSpec

INF, NAN = math.inf, math.nan


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def silu_case() -> tuple[torch.Tensor, torch.Tensor]:
    """Eager's and the oracle's result of a pointwise function."""
    x = normal(64, 64) * 3
    return torch.nn.functional.silu(x), torch.nn.functional.silu(x.double())


def sum_case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input, eager's and the oracle's row sums of positive numbers."""
    x = normal(256, 4096).abs()
    return x, x.sum(1), x.double().sum(1)


def passes(found: torch.Tensor, eager: torch.Tensor, oracle: torch.Tensor) -> bool:
    return compare([found], [eager], [oracle]).passes


def test_eagers_own_result_passes() -> None:
    eager, oracle = silu_case()
    report = compare([eager], [eager], [oracle])
    assert report.passes
    assert report.error_ratio <= 1
    json.dumps(report.to_dict(), allow_nan=False)


def test_the_correctly_rounded_result_passes_and_is_better_than_eager() -> None:
    _, eager, oracle = sum_case()
    report = compare([oracle.float()], [eager], [oracle])
    assert report.passes
    assert report.error_ratio < 1


def test_another_order_of_summation_passes() -> None:
    x, eager, oracle = sum_case()
    assert passes(x.view(256, 64, 64).sum(1).sum(1), eager, oracle)


def test_errors_in_the_last_place_pass() -> None:
    eager, oracle = silu_case()
    found = oracle.float() * (1 + torch.finfo(torch.float32).eps * normal(64, 64, seed=1).sign())
    assert passes(found, eager, oracle)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: torch.zeros_like(t),
        lambda t: torch.full_like(t, t.mean().item()),
        lambda t: t.flatten()[torch.randperm(t.numel())].view_as(t),
        lambda t: t.flip(0),
        lambda t: t.t().contiguous(),
        lambda t: t.roll(1),
        lambda t: torch.cat([t[:-1], torch.zeros_like(t[-1:])]),
        lambda t: torch.cat([t[:-1], t[:1]]),
        lambda t: t * 1.001,
        lambda t: t + 1e-4,
        lambda t: -t,
    ],
    ids=[
        "zeros",
        "constant",
        "shuffled",
        "reversed",
        "transposed",
        "off by one",
        "last block missing",
        "last block stale",
        "a factor",
        "an offset",
        "sign",
    ],
)
def test_plausible_wrong_results_fail(spoil: object) -> None:
    eager, oracle = silu_case()
    assert callable(spoil)
    assert not passes(spoil(eager), eager, oracle)


@pytest.mark.parametrize("position", [0, 4095, 2048])
def test_one_wrong_element_fails(position: int) -> None:
    eager, oracle = silu_case()
    found = eager.clone()
    found.view(-1)[position] += 0.01
    assert not passes(found, eager, oracle)


def test_one_wrong_small_element_among_large_ones_fails() -> None:
    oracle = torch.cat([normal(1000).double() * 1e9, normal(1000, seed=1).double()])
    eager = oracle.float()
    found = eager.clone()
    found[1500] *= 1.1
    report = compare([found], [eager], [oracle])
    assert not report.passes
    assert "on values of size" in report.reason


def cancelled(error: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of size one, and 100 of size 2**-14 of which the last was left over by large ones; the errors of all but
    that one are eager's usual."""
    oracle = torch.cat([normal(4000).double(), torch.full((100,), 2.0**-14, dtype=torch.float64)])
    found = oracle * (1 + 6e-8 * normal(4100, seed=1).double())
    found[-1] = oracle[-1] + error
    return found.float(), oracle


@pytest.mark.parametrize(("error", "right"), [(8e-7, True), (3e-6, False)])
def test_what_eager_owes_to_chance_is_seen_on_inputs_nearby(error: float, right: bool) -> None:
    (lucky, oracle), (usual, _), (found, _) = (cancelled(e) for e in (0.0, 1e-7, error))
    asked = []

    def nearby() -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        asked.append(1)
        yield [usual], [oracle]

    assert "values of size 0.000122" in compare([found], [lucky], [oracle]).reason
    assert compare([found], [lucky], [oracle], nearby=nearby).passes is right
    assert compare([lucky], [lucky], [oracle], nearby=nearby).passes and len(asked) == 1


def scaled_by_a_sum(x: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows over the roots of their sums, of which the first almost cancels: float32 with as many partial sums as
    `width`, and float64."""
    parts = torch.zeros(len(x), width)
    for piece in x.split(width, dim=1):
        parts += piece
    total = parts[:, 0].clone()
    for column in range(1, width):
        total += parts[:, column]
    exact = x.double()
    return x * total.rsqrt()[:, None], exact * exact.sum(1).rsqrt()[:, None]


def almost_cancelling(seed: int) -> torch.Tensor:
    """Sums of 100, but the first, of 2**-12."""
    x = normal(64, 1024, seed=seed)
    x -= x.mean(1, keepdim=True)
    x[:, -1] += 100.0
    x[0, -1] -= x[0].double().sum().float() - 2.0**-12
    return x


def nearby_of(x: torch.Tensor, width: int) -> Nearby:
    def ask() -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        for inputs in several([x]):
            eager, oracle = scaled_by_a_sum(inputs[0], width)
            yield [eager], [oracle]

    return ask


def test_one_sum_that_almost_cancels_makes_no_order_of_additions_wrong() -> None:
    by_chance = 0
    for seed in range(24):
        x = almost_cancelling(seed)
        (eager, oracle), (found, _) = scaled_by_a_sum(x, 128), scaled_by_a_sum(x, 32)
        by_chance += not compare([found], [eager], [oracle]).passes
        assert compare([found], [eager], [oracle], nearby=nearby_of(x, 128)).passes, seed
        coarse = scaled_by_a_sum(x.half().float(), 128)[0]
        assert not compare([coarse], [eager], [oracle], nearby=nearby_of(x, 128)).passes, seed
    assert by_chance, "no draw was one of which inputs nearby decide"


def test_errors_that_do_not_vary_nearby_are_held_to_the_same() -> None:
    x = normal(64, 1024).abs_()
    eager, oracle = scaled_by_a_sum(x, 128)
    found = (oracle + 6 * (eager - oracle)).float()
    assert compare([eager], [eager], [oracle]).passes
    for nearby in (None, nearby_of(x, 128)):
        assert "RMS error" in compare([found], [eager], [oracle], nearby=nearby).reason


def near(eager: torch.Tensor, oracle: torch.Tensor) -> Nearby:
    """As if inputs moved once."""
    return lambda: iter([([eager], [oracle])])


def noisy(oracle: torch.Tensor, by: float) -> torch.Tensor:
    return oracle * (1 + by * normal(len(oracle), seed=2).double())


@pytest.mark.parametrize(("times", "right"), [(7, True), (9, False)])
def test_what_nearby_errors_vary_by_is_allowed_up_to_four_times(times: float, right: bool) -> None:
    oracle = normal(100_000).double()
    eager, found = noisy(oracle, 1e-5).float(), noisy(oracle, times * 1e-4).float()

    nearby = near(noisy(oracle, 1e-4).float(), oracle)
    assert not compare([found], [eager], [oracle]).passes
    report = compare([found], [eager], [oracle], nearby=nearby)
    assert report.passes is right
    assert report.error_ratio == pytest.approx(10 * times, rel=0.1), "is that of eager here"


def test_a_pool_of_draws_is_held_to_what_varies_near_the_last() -> None:
    oracle = normal(100_000).double()
    bad, good = noisy(oracle, 1e-3).float(), noisy(oracle, 1e-6).float()
    draws = [
        Draw([noisy(oracle, 3e-3).float()], [bad], [oracle]),
        Draw([good], [good], [oracle]),
    ]

    nearby = near(noisy(oracle, 1.1e-6).float(), oracle)
    assert "RMS" in compare_draws(draws).reason
    assert "RMS" in compare_draws(draws, nearby).reason
    assert compare_draws([Draw([bad], [bad], [oracle]), draws[1]], nearby).passes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_of_16_bits_are_not_excused_by_inputs_nearby(dtype: torch.dtype) -> None:
    x = normal(512, 256).to(dtype)

    def shares(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        exact = x.double()
        return x / x.sum(1, keepdim=True), exact / exact.sum(1, keepdim=True)

    def nearby() -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        for inputs in several([x]):
            eager, oracle = shares(inputs[0])
            yield [eager], [oracle]

    eager, oracle = shares(x)
    by = 8 * torch.finfo(dtype).eps
    uniform = torch.rand(512, 256, generator=torch.Generator().manual_seed(3))
    found = (oracle * (1 + by * (2 * uniform - 1).double())).to(dtype)
    assert compare([eager], [eager], [oracle]).passes
    assert "RMS" in compare([found], [eager], [oracle], nearby=nearby).reason


def test_inputs_nearby_for_which_there_is_no_room_leave_the_verdict_as_it_is() -> None:
    oracle = normal(4096).double()
    eager, found = noisy(oracle, 1e-6).float(), noisy(oracle, 4e-6).float()

    def nearby() -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        yield [eager], [oracle]
        raise torch.OutOfMemoryError

    def with_what_there_is() -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        return while_there_is_room(nearby())

    without = compare([found], [eager], [oracle])
    assert "RMS" in without.reason
    assert compare([found], [eager], [oracle], nearby=with_what_there_is) == without
    with pytest.raises(torch.OutOfMemoryError):  # as of a bench's task, which is run again alone
        compare([found], [eager], [oracle], nearby=nearby)


def test_what_is_exact_in_eager_may_be_as_far_off_as_eager_is_nearby() -> None:
    oracle = normal(4096).double().float().double()
    exact = oracle.float()

    def off(by: float) -> list[torch.Tensor]:
        return [(oracle * (1 + by * normal(4096, seed=1).double())).float()]

    nearby = near(off(1e-6)[0], oracle)
    assert not compare(off(1.8e-6), [exact], [oracle]).passes
    assert compare(off(1.8e-6), [exact], [oracle], nearby=nearby).passes
    assert not compare(off(3e-6), [exact], [oracle], nearby=nearby).passes


def test_other_failures_do_not_ask_for_inputs_nearby() -> None:
    eager, oracle = silu_case()

    def nearby() -> Iterator[Any]:
        raise AssertionError

    assert not compare([eager * 1.001], [eager], [oracle], nearby=nearby).passes


def test_inputs_nearby_differ_by_rounding_and_keep_zeros_signs_and_strides() -> None:
    x = normal(64, 32).t()
    x[0, :3] = torch.tensor([0.0, INF, NAN])
    numbers = torch.arange(5)
    first, second = (moved([x, numbers], seed) for seed in (0, 1))
    assert first[1] is numbers and first[0].stride() == x.stride()
    near, finite = first[0], x.isfinite()
    assert not torch.equal(near[finite], second[0][finite])
    assert torch.equal(near[0, :2], x[0, :2]) and bool(near[0, 2].isnan())
    assert bool((near.sign() == x.sign())[finite].all())
    assert bool(((near - x).abs()[finite] <= 2 * torch.finfo().eps * x.abs()[finite]).all())
    assert bool((near != x)[finite & (x != 0)].all())


def test_types_without_arithmetic_are_not_moved() -> None:
    tiny = normal(64).to(torch.float8_e4m3fn)
    assert moved([tiny], 0)[0] is tiny


def test_half_precision_accumulation_fails() -> None:
    x, eager, oracle = sum_case()
    assert not passes(x.half().cumsum(1, dtype=torch.float16)[:, -1].float(), eager, oracle)
    assert not passes(x.bfloat16().sum(1).float(), eager, oracle)


def test_tf32_like_rounding_of_the_operands_fails_where_eager_is_ieee() -> None:
    a, b = normal(64, 512), normal(512, 64, seed=1)

    def tf32(t: torch.Tensor) -> torch.Tensor:
        return (t.view(torch.int32) & ~0x1FFF).view(torch.float32)

    oracle = a.double() @ b.double()
    assert not passes(tf32(a) @ tf32(b), a @ b, oracle)
    user_chose_tf32 = (tf32(b).t() @ tf32(a).t()).t()
    assert passes(tf32(a) @ tf32(b), user_chose_tf32, oracle)


def test_a_truncated_sum_fails() -> None:
    x, eager, oracle = sum_case()
    assert not passes(x[:, :-1].sum(1), eager, oracle)


def test_bfloat16_results_are_held_to_bfloat16_rounding() -> None:
    eager, oracle = silu_case()
    rounded = oracle.to(torch.bfloat16)
    assert passes(rounded, eager.to(torch.bfloat16), oracle)
    worse = (oracle.to(torch.float8_e5m2).float()).to(torch.bfloat16)
    assert not passes(worse, eager.to(torch.bfloat16), oracle)


def test_nan_and_infinity_must_be_where_eager_has_them() -> None:
    eager = torch.tensor([1.0, NAN, INF, -INF] * 20)
    oracle = eager.double()
    assert passes(eager.clone(), eager, oracle)
    for position, value in [(0, NAN), (0, INF), (1, 0.0), (1, INF), (2, -INF), (2, 3e38), (3, NAN)]:
        found = eager.clone()
        found[position] = value
        report = compare([found], [eager], [oracle])
        assert not report.passes
        assert f"at [{position}]" in report.reason


def test_all_nan_does_not_match_a_finite_result() -> None:
    eager, oracle = silu_case()
    assert not passes(torch.full_like(eager, NAN), eager, oracle)


def test_where_only_eager_overflowed_both_ways_pass_but_no_other() -> None:
    oracle = torch.tensor([1.0e4, 2.0, 3.0, 4.0] * 20, dtype=torch.float64)
    eager = oracle.half()
    eager[0] = INF
    assert passes(eager.clone(), eager, oracle)
    assert passes(oracle.half(), eager, oracle)
    for value in (-INF, NAN, 60000.0):
        found = eager.clone()
        found[0] = value
        assert not passes(found, eager, oracle)


@pytest.mark.parametrize("eager_overflows", [True, False])
@pytest.mark.parametrize("exact", [65519.9, 65520.1, -65519.9, -65520.1])
def test_within_a_rounding_of_what_overflows_both_neighbours_pass(
    exact: float, eager_overflows: bool
) -> None:
    oracle = torch.tensor([exact, 2.0, 3.0, 4.0] * 20, dtype=torch.float64)
    largest, infinity = (math.copysign(x, exact) for x in (65504.0, INF))
    eager = oracle.half()
    eager[0] = infinity if eager_overflows else largest
    for value, fine in [(largest, True), (infinity, True), (-infinity, False), (NAN, False)]:
        found = eager.clone()
        found[0] = value
        assert passes(found, eager, oracle) == fine, value


@pytest.mark.parametrize(("exact", "other"), [(INF, -INF), (-INF, INF), (NAN, INF)])
def test_what_eager_loses_of_infinite_inputs_may_be_right(exact: float, other: float) -> None:
    oracle = torch.tensor([exact, 2.0, 3.0, 4.0] * 20, dtype=torch.float64)
    eager = oracle.half()
    eager[0] = 0.5

    def is_right(value: float, beyond: bool) -> bool:
        found = oracle.half()
        found[0] = value
        return compare_draws([Draw([found], [eager], [oracle], beyond=beyond)]).passes

    assert is_right(exact, beyond=True) and not is_right(exact, beyond=False)
    assert is_right(0.5, beyond=True) and not is_right(other, beyond=True)


def test_what_is_further_from_overflowing_is_held_to_eager() -> None:
    oracle = torch.tensor([65400.0, 2.0, 3.0, 4.0] * 20, dtype=torch.float64)
    found = oracle.half()
    found[0] = INF
    assert not passes(found, oracle.half(), oracle)


def test_where_eager_is_nan_and_the_oracle_infinite_both_ways_pass_but_no_other() -> None:
    oracle = torch.tensor([-INF, 2.0, 3.0, 4.0] * 20, dtype=torch.float64)
    eager = oracle.float()
    eager[0] = NAN
    assert passes(eager.clone(), eager, oracle)
    assert passes(oracle.float(), eager, oracle)
    for value in (INF, 0.0, -3e38):
        found = eager.clone()
        found[0] = value
        assert not passes(found, eager, oracle)
    found = eager.clone()
    found[1] = NAN
    assert not passes(found, eager, oracle)


def test_where_the_exact_result_does_not_fit_the_dtype_infinity_is_right() -> None:
    oracle = torch.tensor([1e39, 1.0], dtype=torch.float64)
    eager = oracle.float()
    assert passes(eager.clone(), eager, oracle)
    assert not passes(torch.tensor([3e38, 1.0]), eager, oracle)


def test_few_elements_are_pooled_over_draws() -> None:
    draws = []
    for seed in range(8):
        x = normal(4096, seed=seed)
        draws.append(Draw([x.view(64, 64).sum(0).sum()], [x.sum()], [x.double().sum()]))
    assert compare_draws(draws).passes
    assert compare_draws(draws).outputs[0].elements == 8
    spoilt = Draw([draws[3].outputs[0] * 1.001], draws[3].eager, draws[3].oracle)
    assert not compare_draws([*draws, spoilt]).passes


def test_an_exact_eager_leaves_the_rounding_floor() -> None:
    oracle = normal(1000).double()
    eager = oracle.float()
    exact = eager.double()
    assert passes(eager * (1 + 2**-23), eager, exact)
    assert not passes(eager * (1 + 2**-19), eager, exact)


def test_zero_results_must_be_zero() -> None:
    zeros = torch.zeros(100)
    assert passes(zeros, zeros, zeros.double())
    assert not passes(zeros + 1e-20, zeros, zeros.double())


def test_integers_and_booleans_must_be_equal() -> None:
    values = torch.arange(10)
    assert passes(values, values, values)
    report = compare([values.clone().fill_(3)], [values], [values])
    assert "9 of 10 elements differ, first at [0]: 3 instead of 0" in report.reason
    flags = values > 4
    assert passes(flags, flags, flags)
    assert not passes(~flags, flags, flags)


def test_metadata_comes_before_values() -> None:
    spec = TensorSpec("float32", (2, 3), (3, 1))
    assert check_metadata([("float32", (2, 3), (3, 1))], [spec]) == ""
    assert "instead of 1" in check_metadata([], [spec])
    assert "float16" in check_metadata([("float16", (2, 3), (3, 1))], [spec])
    assert "[3, 2]" in check_metadata([("float32", (3, 2), (2, 1))], [spec])
    assert "strides" in check_metadata([("float32", (2, 3), (1, 2))], [spec])
    thin = TensorSpec("float32", (2, 1), (1, 1))
    assert check_metadata([("float32", (2, 1), (1, 2))], [thin]) == ""


def test_rounding_around_a_threshold_is_no_error() -> None:
    before = torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    eager = (before + 1e-7 * torch.randn_like(before)).relu().float()
    other = before.clone()
    zeros = (before < 0).nonzero().flatten()
    other[zeros[0]] = 2e-7  # rounded to the other side of zero
    oracle = before.relu()
    assert compare([other.relu().float()], [eager], [oracle]).passes
    other[zeros[0]] = 1e-3
    assert not compare([other.relu().float()], [eager], [oracle]).passes


@pytest.mark.parametrize("lanes", [2, 512])
@pytest.mark.parametrize("count", [1, 511, 513, 4000])
def test_tables_side_by_side_give_the_same_largest_errors(
    lanes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(count)
    bins = torch.randint(0, size_groups.BINS, (count,), generator=generator)
    bins[::2] = 1100  # most are of one group
    errors = [torch.rand(count, generator=generator).double() for _ in range(2)]
    found, wanted = (
        [torch.full((size_groups.BINS,), 0.25).double() for _ in range(2)] for _ in "ab"
    )
    counts = [torch.ones(size_groups.BINS, dtype=torch.int64) for _ in "ab"]
    raise_tops(wanted, bins, errors, counts[0])
    monkeypatch.setitem(size_groups.LANES, "cpu", lanes)
    raise_tops(found, bins, errors, counts[1])
    assert all(map(torch.equal, found, wanted)) and torch.equal(*counts)
    assert int(counts[0].sum()) == size_groups.BINS + count
    assert float(found[0][1100]) == max(0.25, float(errors[0][bins == 1100].max()))


@pytest.mark.parametrize("wrong", [None, 77])
def test_a_report_is_the_same_however_its_tables_are_filled(
    wrong: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, oracle = silu_case()
    found = eager.clone()
    if wrong is not None:
        found.view(-1)[wrong] += 0.01
    one = compare([found], [eager], [oracle])
    monkeypatch.setitem(size_groups.LANES, "cpu", 64)
    assert compare([found], [eager], [oracle]) == one
    assert one.passes is (wrong is None)


@pytest.mark.parametrize("special", [None, math.nan])
def test_a_run_that_gave_the_same_bits_is_counted_and_not_looked_at(
    special: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, oracle = silu_case()
    if special is not None:
        eager.view(-1)[5] = oracle.view(-1)[5] = special
    found = eager.clone()
    found.view(-1)[::7] *= 1 + 1e-6
    looked: list[int] = []
    add = ErrorPool.add_piece

    def counting(pool: ErrorPool, *given: Any) -> str:
        looked.append(1)
        return add(pool, *given)

    monkeypatch.setattr(ErrorPool, "add_piece", counting)
    short, whole = Comparison(), Comparison()
    other = found.clone()
    other.view(-1)[9] *= 1 + 1e-6
    for outputs in (found, found.clone(), found.clone(), other):
        short.add(Draw([outputs], [eager], [oracle]))
        whole.add(Draw([outputs], [eager.clone()], [oracle]))  # of another draw, for all it knows
    assert len(looked) == 2 + 4
    (one,), (all_of_them,) = short.report().outputs, whole.report().outputs
    assert one.elements == all_of_them.elements and one.passes == all_of_them.passes
    for name in (
        "rms_error",
        "rms_eager",
        "rms_allowed",
        "max_error",
        "max_allowed",
        "error_ratio",
    ):
        assert getattr(one, name) == pytest.approx(getattr(all_of_them, name), rel=1e-12), name


def test_a_run_that_is_wrong_where_the_one_before_was_not_is_looked_at() -> None:
    eager, oracle = silu_case()
    comparison = Comparison()
    for wrong in (0.0, 0.0, 0.5):
        found = eager.clone()
        found.view(-1)[3] += wrong
        comparison.add(Draw([found], [eager], [oracle]))
    assert not comparison.report().passes


@pytest.mark.gpu
def test_a_device_comes_to_the_same_report() -> None:
    oracle = torch.randn(1 << 22).double()
    eager = oracle.half()
    found = eager.clone()
    found[::5] *= 1.002
    found[77] = eager[77] = oracle[77] = math.nan
    one = compare([found], [eager], [oracle]).outputs[0]
    other = compare([found.cuda()], [eager.cuda()], [oracle.cuda()]).outputs[0]
    assert one.elements == other.elements
    for name in ("rms_error", "rms_eager", "max_error", "max_allowed", "error_ratio"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9), name


@pytest.mark.gpu
def test_a_device_finds_the_same_largest_errors() -> None:
    count = 1 << 22
    bins = torch.full((count,), 1100)
    bins[::3] = torch.randint(1000, 1200, bins[::3].shape)
    errors = [torch.rand(count).double() for _ in range(2)]
    wanted = [torch.zeros(size_groups.BINS).double() for _ in range(2)]
    found = [top.cuda() for top in wanted]
    raise_tops(wanted, bins, errors)
    raise_tops(found, bins.cuda(), [error.cuda() for error in errors])
    assert all(torch.equal(one.cpu(), other) for one, other in zip(found, wanted, strict=True))
