"""The least bytes a task must move, and the machine's ceilings."""

from __future__ import annotations

import json

import pytest
import torch
from judge_kit import silu_bias, spec

from sandbox.graph.build import build_graph
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Task
from sandbox.timing import machine
from sandbox.timing.machine import Ceilings
from sandbox.timing.roofline import (
    achieved,
    floor_bytes,
    floor_seconds,
    operations,
    operations_of,
    reachable_seconds,
)

CEILINGS = Ceilings(2e9, 1e9, 1e12, cache_bytes=1 << 20)


def test_ceilings_come_back_from_json_among_other_figures() -> None:
    told = json.loads(json.dumps({**CEILINGS.to_dict(), "call_s": 1e-6}))
    assert Ceilings.of(told) == CEILINGS
    assert CEILINGS.seconds_to_move(read=1e9, written=1e9) == 1.5
    with pytest.raises(KeyError, match="flops_per_s"):
        Ceilings.of({"bytes_per_s": 1.0, "read_bytes_per_s": 1.0})


def test_without_triton_reading_is_measured_with_torchs_kernels_and_said_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sandbox.timing import streaming

    def broken(*_: object) -> None:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(streaming, "read", broken)
    assert machine._streamed(torch.zeros(streaming.BLOCK)) == float("inf")
    assert "torch's own kernels: RuntimeError: no C compiler" in caplog.text


def test_what_is_read_and_written_counts_once() -> None:
    assert floor_bytes(silu_bias(256, 512)) == (4 * (256 * 512 + 512), 4 * 256 * 512)


def test_an_expanded_input_counts_its_memory_only() -> None:
    task = Task(
        "cpu",
        (TensorSpec("float32", (1000, 8), (0, 1)),),
        (Node("aten.relu.default", {"self": InputRef(0)}),),
        (NodeRef(0),),
        (spec(1000, 8),),
    )
    assert floor_bytes(task)[0] == 32


def test_a_table_that_is_looked_up_does_not_count_but_its_indices_do() -> None:
    task = Task(
        "cpu",
        (spec(10000, 64), spec(5, dtype="int64")),
        (Node("aten.embedding.default", {"weight": InputRef(0), "indices": InputRef(1)}),),
        (NodeRef(0),),
        (spec(5, 64),),
    )
    assert floor_bytes(task)[0] == 40


def test_what_is_cut_later_does_not_count() -> None:
    task = Task(
        "cpu",
        (spec(100, 64),),
        (
            Node("aten.relu.default", {"self": InputRef(0)}),
            Node("aten.slice.Tensor", {"self": NodeRef(0), "dim": 0, "start": 0, "end": 10}),
            Node("aten.exp.default", {"self": NodeRef(1)}),
        ),
        (NodeRef(2),),
        (spec(10, 64),),
    )
    assert floor_bytes(task)[0] == 0


def test_writes_count_beyond_the_cache_only() -> None:
    small, large = silu_bias(256, 512), silu_bias(256, 8192)
    assert floor_seconds(small, CEILINGS) == pytest.approx(4 * (256 * 512 + 512) / 1e9)
    read = 4 * (256 * 8192 + 8192) / 1e9
    assert floor_seconds(large, CEILINGS) == pytest.approx(read + (8 * 2**20 - 2**20) / 2e9)


def test_the_better_of_two_measurements_is_kept() -> None:
    other = Ceilings(1e9, 5e9, 1.0, 3)
    assert CEILINGS.best_of(other) == Ceilings(2e9, 5e9, 1e12, 1 << 20)


def test_ceilings_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "COPY_BYTES", 1 << 22)
    found = machine.ceilings("cpu")
    assert min(found.to_dict().values()) > 0
    assert found.read_bytes_per_s >= found.bytes_per_s / 2


@pytest.mark.parametrize("error", [None, RuntimeError("no memory"), ZeroDivisionError()])
def test_what_measures_the_ceilings_is_loaded_with_next_to_no_data(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def measured(*given: object) -> Ceilings:
        asked.append(given)
        if error:
            raise error
        return CEILINGS

    monkeypatch.setattr(machine, "_ceilings", measured)
    machine.load_for_ceilings("cpu")
    assert not asked
    machine.load_for_ceilings("cuda")
    assert asked == [("cuda", "float32", machine.FEW_BYTES, machine.NARROW)]


def test_facts_are_json_and_name_processor_and_torch() -> None:
    found = machine.facts()
    assert json.loads(json.dumps(found)) == found
    assert found["cpu"]
    assert found["torch"]
    assert found["cores"] >= 1


def product(m: int, k: int, n: int) -> Task:
    return Task(
        "cpu",
        (spec(m, k), spec(k, n)),
        (
            Node("aten.mm.default", {"self": InputRef(0), "mat2": InputRef(1)}),
            Node("aten.relu.default", {"self": NodeRef(0)}),
        ),
        (NodeRef(1),),
        (spec(m, n),),
    )


def test_products_are_counted_and_pointwise_work_is_not() -> None:
    assert operations(build_graph(product(8, 16, 32))) == 2 * 8 * 16 * 32
    assert operations(build_graph(silu_bias(8, 16))) == 0


def test_attention_on_cpu_is_counted() -> None:
    shape = (2, 4, 16, 8)
    names = {f"{name}": InputRef(i) for i, name in enumerate(("query", "key", "value"))}
    task = Task(
        "cpu",
        (spec(*shape),) * 3,
        (Node("aten._scaled_dot_product_flash_attention_for_cpu.default", names),),
        (NodeRef(0, 0),),
        (TensorSpec("float32", shape, (512, 8, 32, 1)),),
    )
    assert operations(build_graph(task)) == 2 * (2 * 4 * 16 * 16 * 8) * 2


def test_heads_that_share_keys_count_by_queries() -> None:
    query, shared = (
        torch.empty(2, heads, tokens, 16, device="meta", dtype=torch.bfloat16)
        for heads, tokens in ((8, 5), (2, 7))
    )
    attend = torch.ops.aten._scaled_dot_product_flash_attention
    assert operations_of(lambda: attend(query, shared, shared)) == 2 * (2 * 8 * 5 * 7 * 16) * 2


def test_rates_are_told_as_shares_of_the_ceilings() -> None:
    task, seconds = product(8, 16, 32), 1e-3
    found = achieved(task, 8192, seconds, CEILINGS)
    assert found.bytes == 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert found.of_memory == pytest.approx(reachable_seconds(task, CEILINGS) / seconds)
    assert found.operations_per_s == pytest.approx(8192 / seconds)
    assert found.of_arithmetic == pytest.approx(8192 / seconds / 1e12)
