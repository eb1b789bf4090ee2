"""Layouts deal every element of a row to exactly one thread; indices mean the same over a flat position."""

from __future__ import annotations

import itertools
import math

import pytest
import sympy
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from cuda_agent_backend.codegen.cuda.common.body_rewrites import share_divisors
from cuda_agent_backend.codegen.cuda.common.flat_loops import POSITION, flatten
from cuda_agent_backend.codegen.cuda.common.lane_printer import is_aligned
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.cuda.rows.loops import position_loop
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value


def positions(layout: Layout) -> list[int]:
    """What the threads of a row's team meet, by the formulas of the emitted loops, masks applied."""
    found: list[int] = []
    for segment, t, k in itertools.product(
        range(layout.segments), range(layout.team), range(layout.chunks)
    ):
        width = layout.vector if layout.inner else 1
        q = t * layout.chunks + k if layout.blocked else (k * layout.team + t) * width
        if q < min(layout.segment, layout.points - segment * layout.segment):
            found += [segment * layout.segment + q + lane for lane in range(width)]
    return found


@given(
    st.integers(1, 600), st.sampled_from([1, 2, 4]), st.sampled_from([1, 4, 32]), st.sampled_from([1, 2, 3, 8]),
    st.sampled_from(["inner", "outer"]), st.booleans(),
)  # fmt: skip
def test_every_element_of_a_row_is_dealt_once(
    groups: int, vector: int, team: int, segments: int, lanes: str, ordered: bool
) -> None:
    points = groups * vector if lanes == "inner" else groups
    layout = Layout(points, 7, lanes, vector, team, 1, segments, "cluster", ordered=ordered)
    assume((segments - 1) * layout.segment < points)
    assert sorted(positions(layout)) == list(range(points))


@given(
    st.integers(1, 900), st.sampled_from([1, 2, 4]), st.sampled_from([32, 64]), st.integers(2, 9)
)
def test_segments_of_whole_tiles_deal_every_element_once(
    groups: int, vector: int, team: int, segments: int
) -> None:
    points = groups * vector
    layout = Layout(points, 7, "inner", vector, team, 1, segments, "split", "none", whole=1)
    assume((segments - 1) * layout.segment < points)
    assert layout.segment % layout.tile == 0
    assert sorted(positions(layout)) == list(range(points))


@pytest.mark.parametrize("keep", ["registers", "shared", "none"])
def test_loops_test_the_limit_only_where_the_sizes_are_uneven(keep: str) -> None:
    even = "\n".join(position_loop(Layout(4096, 8, vector=4, team=128, keep=keep), ["use(j);"]))
    uneven = "\n".join(position_loop(Layout(4000, 8, vector=4, team=128, keep=keep), ["use(j);"]))
    assert "q < limit" not in even and "q < limit" in uneven


@given(st.lists(st.integers(2, 6), min_size=1, max_size=4), st.data())
def test_a_flat_position_stands_for_the_loops_it_was_made_of(
    sizes: list[int], data: st.DataObject
) -> None:
    dims = tuple(
        (sympy.Symbol(f"r{n}", integer=True, nonnegative=True), size)
        for n, size in enumerate(sizes)
    )
    flat = flatten(dims, "int")
    at = [data.draw(st.integers(0, size - 1)) for size in sizes]
    place = sum(i * math.prod(sizes[n + 1 :]) for n, i in enumerate(at))
    outer: dict[sympy.Symbol, int] = {
        symbol: i for (symbol, _), i in zip(dims[:-1], at[:-1], strict=True)
    }
    weights = [data.draw(st.integers(0, 9)) for _ in sizes]
    index = sum((w * symbol for w, (symbol, _) in zip(weights, dims, strict=True)), sympy.S.Zero)
    wanted = sum(w * i for w, i in zip(weights, at, strict=True))
    assert flat.of(index).subs({**outer, POSITION: place}) == wanted
    assert len(flat.statements) == len(sizes) - 1


def test_an_index_in_row_order_becomes_the_position_itself() -> None:
    a, b, p = (sympy.Symbol(n, integer=True, nonnegative=True) for n in ("a", "b", "p0"))
    flat = flatten(((a, 8), (b, 256)), "int")
    assert flat.of(2048 * p + 256 * a + b) == 2048 * p + POSITION


def test_alignment_is_claimed_only_where_every_term_has_it() -> None:
    p = sympy.Symbol("p0", integer=True, nonnegative=True)
    assert is_aligned(1024 * p + POSITION + 8, POSITION, 1, 4, 4)
    assert not is_aligned(1023 * p + POSITION, POSITION, 1, 4, 4)
    assert not is_aligned(1024 * p + POSITION + 2, POSITION, 1, 4, 4)
    assert is_aligned(1024 * p + 1023 - POSITION, POSITION, -1, 4, 4)
    assert not is_aligned(1024 * p + 1024 - POSITION, POSITION, -1, 4, 4)


def test_only_divisors_that_a_row_shares_are_marked() -> None:
    zero, p = sympy.S.Zero, sympy.Symbol("p0", integer=True, nonnegative=True)
    body = Body(
        [
            Instruction(Value(0), "load", buffer="x", index=POSITION),
            Instruction(Value(1), "local", buffer="total", index=zero),
            Instruction(Value(2), "constant", ("2.0",), torch.float32),
            Instruction(Value(3), "mul", (Value(1), Value(2))),
            Instruction(Value(4), "truediv", (Value(0), Value(3))),
            Instruction(Value(5), "truediv", (Value(3), Value(0))),
            Instruction(Value(6), "truediv", (Value(1), Value(2))),
            Instruction(Value(7), "load", buffer="temperature", index=sympy.Integer(3)),
            Instruction(Value(8), "truediv", (Value(0), Value(7))),
            Instruction(Value(9), "load", buffer="of_rows", index=p),
            Instruction(Value(10), "truediv", (Value(0), Value(9))),
        ],
        (Value(4),),
    )
    ops = [i.op for i in share_divisors(body, {"total"}, [p]).instructions[4:]]
    assert ops == ["divide_row", "truediv", "truediv", "load", "divide_row", "load", "divide_row"]
    assert share_divisors(body, {"total"}).instructions[-1].op == "truediv"
