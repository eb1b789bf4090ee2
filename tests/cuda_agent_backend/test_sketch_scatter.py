"""Scatters whose results collide: recognised, written, and right, as an emulator on the CPU runs them."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, sample
from torch import Tensor

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.cuda.scatter.writer import CudaScatter
from cuda_agent_backend.operators.kinds import Kind, kind_of
from sandbox.accuracy.input_bounds import input_bounds
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.graph.build import build_graph
from sandbox.plan.candidate import Candidate


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def places(size: int, *shape: int) -> Tensor:
    return torch.randint(size, shape, generator=torch.Generator().manual_seed(size))


def odd(*shape: int) -> Tensor:
    """Zeros of both signs, infinities and NaN of both signs among the values."""
    x = randn(*shape)
    flat = x.view(-1)
    for n, value in enumerate((0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan)):
        flat[n::61] = math.copysign(abs(value), -1) if n == 5 else value
    return x


def counted(i: Tensor) -> Tensor:
    counts = torch.zeros(i.shape[0], 30)
    return counts.scatter_add(1, i, torch.ones_like(i, dtype=counts.dtype))


def by_owner(how: str, start: float = -0.5) -> Callable[[Tensor, Tensor], Tensor]:
    def reduced(x: Tensor, i: Tensor) -> Tensor:
        into = x.new_full((9, x.shape[1]), start)
        return into.scatter_reduce(0, i[:, None].expand_as(x), x, reduce=how)

    return reduced


def added(into: Tensor, index: Tensor, values: Tensor) -> Tensor:
    return into.scatter_add(1, index, values)


def gathered_edges(into: Tensor, index: Tensor, values: Tensor) -> Tensor:
    return into.index_add(0, index, values)


def put(dim: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Along ``dim``, as the gradient of a table is made and `index_add` is taken apart."""

    def into_places(into: Tensor, index: Tensor, values: Tensor) -> Tensor:
        indices = [*[None] * dim, index]
        return torch.ops.aten.index_put(into, indices, values, True)

    return into_places


def masked(into: Tensor, kept: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Rows at the padding are left out."""
    put = torch.ops.aten._unsafe_masked_index_put_accumulate
    return put(into, kept[..., None], [index], values)


def masked_in_the_middle(into: Tensor, kept: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """The mask lies as the index does, whatever is before it."""
    put = torch.ops.aten._unsafe_masked_index_put_accumulate
    return put(into, kept[..., None], [None, index], values)


def degrees(i: Tensor) -> Tensor:
    counts = torch.zeros(9)
    return torch.ops.aten.index_put(counts, [i], torch.ones(i.shape[0]), True)


def messages(x: Tensor, weights: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Along the edges of a graph, each with a weight for each of its heads."""
    sent = x[source] * weights.view(*weights.shape, *[1] * (x.dim() - weights.dim()))
    into = x.new_zeros(9, *x.shape[1:], dtype=torch.float32)
    return into.index_add(0, target, sent.float())


def largest_message(x: Tensor, bias: Tensor, source: Tensor, target: Tensor) -> Tensor:
    sent = torch.relu(x[source] + bias)
    into = x.new_full((9, x.shape[1]), -1e9)
    return into.scatter_reduce(0, target[:, None].expand_as(sent), sent, reduce="amax")


def attended(x: Tensor, e: Tensor, total: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Messages by the weights of an attention over the edges of each node."""
    weights = e / total[target]
    return x.new_zeros(9, *x.shape[1:]).index_add(0, target, x[source] * weights[:, :, None])


def directed(weights: Tensor, directions: Tensor, target: Tensor) -> Tensor:
    """Vectors, as of forces between atoms."""
    sent = weights[:, :, None] * directions[:, None, :]
    return weights.new_zeros(9, *sent.shape[1:]).index_add(0, target, sent)


def viewed(x: Tensor, target: Tensor) -> Tensor:
    """Values that are seen in another order than they are made."""
    return x.new_zeros(9, 4, 6).index_add(0, target, x.relu().view(-1, 6, 4).transpose(1, 2))


def spread(x: Tensor, target: Tensor) -> Tensor:
    sent = (2 * x).unsqueeze(1).expand(-1, 8)
    return x.new_zeros(9, 8).scatter_add(0, target[:, None].expand(-1, 8), sent)


def within_rows(x: Tensor, scale: Tensor, i: Tensor) -> Tensor:
    return x.new_zeros(len(x), 13).scatter_add(1, i, torch.sigmoid(x.t()).t() * scale)


Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
EDGES = (places(20, 120), places(9, 120))
CASES: dict[str, Case] = {
    "counts": (counted, (places(30, 80, 50),)),
    "sums within rows": (added, (randn(70, 13), places(13, 70, 40), randn(70, 40))),
    "sums along columns": (lambda s, i, x: s.scatter_add(0, i, x), (randn(13, 36), places(13, 40, 36), randn(40, 36))),
    "sums in the middle": (added, (randn(80, 7, 9), places(7, 80, 11, 9), randn(80, 11, 9))),
    "sums of rows": (by_owner("sum"), (randn(120, 40), places(9, 120))),
    "sums of odd rows": (by_owner("sum"), (randn(120, 13), places(9, 120))),
    "largest": (by_owner("amax"), (odd(120, 40), places(9, 120))),
    "largest from below": (by_owner("amax", -100.0), (odd(120, 40), places(9, 120))),
    "smallest": (by_owner("amin", 100.0), (odd(120, 13), places(9, 120))),
    "largest beside what is there": (
        lambda s, i, x: s.scatter_reduce(1, i, x, reduce="amax"),
        (odd(70, 13), places(13, 70, 40), randn(70, 40)),
    ),
    "messages of edges": (gathered_edges, (randn(9, 40), places(9, 120), randn(120, 40))),
    "gradient of a table": (put(0), (randn(30, 12), places(30, 7, 11) - 15, randn(7, 11, 12))),
    "put in the middle": (put(1), (randn(80, 7, 9), places(7, 11), randn(80, 11, 9))),
    "gradient of a table with padding": (
        masked,
        (randn(30, 12), places(30, 7, 11) > 5, places(30, 7, 11), randn(7, 11, 12)),
    ),
    "put in the middle with padding": (
        masked_in_the_middle,
        (randn(80, 7, 9), places(7, 11) > 2, places(7, 11), randn(80, 11, 9)),
    ),
    "degrees": (degrees, (places(9, 120),)),
    "messages that are weighed": (messages, (randn(20, 40), randn(120), *EDGES)),
    "messages of odd rows": (messages, (randn(20, 13), randn(120), *EDGES)),
    "messages of heads": (messages, (randn(20, 3, 8), randn(120, 3), *EDGES)),
    "messages of heads of three": (messages, (randn(20, 4, 3), randn(120, 4), *EDGES)),
    "messages of heads of six": (messages, (randn(20, 4, 6), randn(120, 4), *EDGES)),
    "messages with a direction": (directed, (randn(120, 8), randn(120, 3), EDGES[1])),
    "messages in another order": (viewed, (randn(120, 24), EDGES[1])),
    "messages of one number": (spread, (randn(120), EDGES[1])),
    "messages of an attention": (attended, (randn(20, 3, 8), randn(120, 3), randn(9, 3).exp(), *EDGES)),
    "largest message": (largest_message, (odd(20, 40), randn(40), *EDGES)),
    "values made within rows": (within_rows, (randn(70, 40), randn(40), places(13, 70, 40))),
    "from a transpose": (lambda s, i, x: added(s, i, x.t()), (randn(70, 13), places(13, 70, 40), randn(40, 70))),
}  # fmt: skip


def for_cuda(name: str) -> Sample:
    function, inputs = CASES[name]
    return scattered(function, *inputs)


def scattered(function: Callable[..., Any], *inputs: Tensor) -> Sample:
    it = sample(function, *inputs)
    return dataclasses.replace(it, task=dataclasses.replace(it.task, target="cuda"))


@pytest.mark.parametrize("name", CASES)
def test_what_an_emulator_runs_gives_what_eager_gives(name: str, tmp_path: Path) -> None:
    it = for_cuda(name)
    assert isinstance(it.analysis, CudaScatter)
    proposals = it.analysis.schedules()
    kinds = {(s.parameters(0)["scatter"], s.parameters(0).get("test")): s for s in proposals[::-1]}
    assert len(kinds) >= 1
    for schedule in kinds.values():
        made = api.generate(it.analysis, schedule)
        assert isinstance(made, Candidate), made
        (got,) = cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path)
        torch.testing.assert_close(got, it.want[0], rtol=1e-5, atol=1e-5, equal_nan=True)


def test_rows_that_fit_shared_memory_are_joined_there_first() -> None:
    first = for_cuda("counts").analysis.schedules()[0].parameters(0)
    assert first["scatter"] == "shared"
    made = api.generate(for_cuda("counts").analysis, for_cuda("counts").analysis.schedules()[0])
    assert isinstance(made, Candidate) and "int counts = 1" in made.source
    assert made.plan.launches()[0].shared == 30 * 4


def test_messages_are_made_where_they_are_added_up() -> None:
    it = for_cuda("messages that are weighed")
    first = it.analysis.schedules()[0]
    assert first.parameters(0)["vector"] == 4
    made = api.generate(it.analysis, first)
    assert isinstance(made, Candidate)
    assert [buffer.kind for buffer in made.plan.buffers] == ["input"] * 4 + ["output"]
    assert "ca::load<L>(in" in made.source  # rows in whole vectors, though an index names them


def test_messages_of_half_precision_are_added_up_as_they_are_made(tmp_path: Path) -> None:
    given = (randn(20, 40).half(), randn(120).half())
    it = scattered(messages, *given, *EDGES)
    (want,) = sample(messages, *(x.float() for x in given), *EDGES).want
    made = api.generate(it.analysis, it.analysis.schedules()[0])
    assert isinstance(made, Candidate)
    (got,) = cuda_emulator.run(made.source, made.plan, it.inputs, tmp_path)
    torch.testing.assert_close(got, want)


@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_messages_compile_without_spilling_registers(dtype: torch.dtype, tmp_path: Path) -> None:
    it = scattered(messages, randn(20, 3, 8).to(dtype), randn(120, 3).to(dtype), *EDGES)
    made = api.generate(it.analysis, it.analysis.schedules()[0])
    assert isinstance(made, Candidate)
    compiled = compile_candidate(made, tmp_path, "sm_90a", 120)
    assert isinstance(compiled, Compiled), compiled
    assert all(facts["spill_store_bytes"] == 0 for facts in compiled.facts.values())


def test_values_that_are_made_of_others_than_their_own_are_left_to_inductor() -> None:
    def summed(x: Tensor, i: Tensor) -> Tensor:
        return x.new_zeros(9, 40).index_add(0, i, x - x.mean(1, keepdim=True))

    it = sample(summed, randn(120, 40), places(9, 120))
    found = api.analyse(dataclasses.replace(it.task, target="cuda"))
    assert isinstance(found, api.NotCovered)


def test_an_index_is_drawn_within_the_places() -> None:
    it = for_cuda("sums of rows")
    index = next(n for n, x in enumerate(it.inputs) if not x.is_floating_point())
    assert input_bounds(it.task)[index] == (0, 9)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (added, (randn(7, 9).half(), places(9, 7, 4), randn(7, 4).half())),
        (added, (randn(7, 9), places(9, 5, 4), randn(5, 4))),
        (put(0), (randn(9, 4), places(9, 7), randn(1, 4))),
        (put(0), (randn(9, 4).half(), places(9, 7), randn(7, 4).half())),
        (
            lambda s, i, x: torch.ops.aten.index_put(s, [i], x, False),
            (randn(9, 4), places(9, 7), randn(7, 4)),
        ),
        (lambda s, i, x: s.scatter_reduce(1, i, x, reduce="prod"), (randn(7, 9), places(9, 7, 4), randn(7, 4))),
        (
            lambda s, i, x: s.scatter_reduce(1, i, x, reduce="amax", include_self=False),
            (randn(7, 9), places(9, 7, 4), randn(7, 4)),
        ),
    ],
)  # fmt: skip
def test_other_scatters_are_left_to_inductor(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    it = sample(function, *inputs)
    found = api.analyse(dataclasses.replace(it.task, target="cuda"))
    assert isinstance(found, api.NotCovered)


def test_scatters_are_left_where_algorithms_must_be_deterministic() -> None:
    task = for_cuda("sums of rows").task
    graph = build_graph(task).graph
    node = next(n for n in graph.nodes if "scatter" in str(n.target))
    assert kind_of(node, dict.fromkeys(graph.nodes, Kind.SOURCE)) is Kind.SCATTER
    torch.use_deterministic_algorithms(True)
    try:
        assert kind_of(node, dict.fromkeys(graph.nodes, Kind.SOURCE)) is Kind.BARRIER
    finally:
        torch.use_deterministic_algorithms(False)


RUN = """
import sys
from pathlib import Path
import cuda_emulator, torch
import test_sketch_scatter as t
from cuda_agent_backend.codegen import api
it = t.for_cuda("sums within rows")
made = api.generate(it.analysis, it.analysis.schedules()[int(sys.argv[2])])
wrong = [x if x.is_floating_point() else torch.full_like(x, int(sys.argv[3])) for x in it.inputs]
cuda_emulator.run(made.source, made.plan, wrong, Path(sys.argv[1]))
"""


@pytest.mark.parametrize(("schedule", "index"), [(0, 13), (-1, -1)])
def test_an_index_out_of_range_stops_the_kernel(schedule: int, index: int, tmp_path: Path) -> None:
    here = Path(__file__).parents[1]
    path = [str(p) for p in (Path(__file__).parents[2], here, here / "cuda_agent_backend")]
    program = f"import sys; sys.path[:0] = {path!r}\n{RUN}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(schedule), str(index)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode and "the kernel stopped itself" in done.stderr
