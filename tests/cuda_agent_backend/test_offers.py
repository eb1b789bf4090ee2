"""What is beside a product: searched where nothing wins for the whole region, found again, and used."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch
from torch import Tensor

from cuda_agent_backend.acceptance.whole_graph import WholeGraph
from cuda_agent_backend.options import Options
from cuda_agent_backend.runtime import kernels
from cuda_agent_backend.runtime.machine import key_of
from kernel_cache import KernelCache, NegativeRecord
from sandbox.task.task import Task

X, W = torch.randn(256, 128) / 8, torch.randn(128, 128) / 8
WHOLE, REST = 500.0, 1000.0


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "_open", {})
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


def layer(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).neg().exp()


class Searcher:
    """Finds a kernel that adds the mark for tasks without a product, and none for others. Accepts what `use` says."""

    def __init__(self, cache: KernelCache, folder: Path, use: bool = True) -> None:
        self.cache, self.folder, self.use = cache, folder, use
        self.tasks: list[Task] = []
        self.searched: list[list[int]] = []
        self.queued: list[tuple[Sequence[Task], WholeGraph | None]] = []
        self.asked: list[WholeGraph] = []

    def search(
        self,
        tasks: Sequence[Task],
        budget_s: float,
        recorded: Mapping[str, str] | None = None,
        promises: Mapping[str, float] | None = None,
        rests: Mapping[str, Task] | None = None,
    ) -> dict[str, Any]:
        found = [*tasks, *(rests or {}).values()]
        self.tasks += tasks
        self.searched.append([len(task.nodes) for task in found])
        for task in found:
            self.settle(task)
        return {}

    def settle(self, task: Task, lasts: float = 1000.0) -> None:
        if len(task.inputs) == 1:
            body = kit.elementwise(task, f"std::exp(-a) + {REST}f")
            kit.promote(self.cache, task, body, self.folder)
        else:
            now = time.time()
            budget = {"seconds": 1.0}
            self.cache.put_negative(
                NegativeRecord(key_of(task), "search", budget, "nothing wins", now - 1, now + lasts)
            )

    def enqueue(self, tasks: Sequence[Task], later: WholeGraph | None) -> None:
        self.queued.append((tasks, later))

    def accept(self, whole: WholeGraph, budget_s: float) -> dict[str, Any]:
        self.asked.append(whole)
        return {"use": [key.digest for key in whole.keys] if self.use else []}


def options(folder: Path, search: str, **more: Any) -> Options:
    return kit.options_in(folder, search=search, **more)


def run(options: Options, searcher: Any = None) -> tuple[float, list[tuple[str, bool]]]:
    """The mark that is in the result, and each region's status and whether it is a rest."""
    seen = kit.Capture()
    torch._dynamo.reset()
    made = torch.compile(layer, backend=kit.backend_for(options, seen, searcher))
    mark = float((made(X, W) - layer(X, W)).mean())
    (report,) = seen.reports
    assert report.wholes == 1
    return round(mark), [(region.status, region.beside) for region in report.regions]


NEITHER = 0, [("negative", False), ("dropped", True)]
BESIDE = REST, [("negative", False), ("hit", True)]


def test_the_rest_is_searched_with_the_whole_and_found_again_without_a_search(
    tmp_path: Path,
) -> None:
    made = options(tmp_path, "search")
    searcher = Searcher(kit.cache_of(made), tmp_path)
    assert run(made, searcher) == BESIDE and searcher.searched == [[3, 2]]
    assert run(made, searcher) == BESIDE and len(searcher.searched) == 1
    assert run(options(tmp_path, "cached")) == BESIDE


def test_a_rest_waits_for_the_wholes_search_in_the_background(tmp_path: Path) -> None:
    made = options(tmp_path, "background")
    searcher = Searcher(kit.cache_of(made), tmp_path)
    assert run(made, searcher) == (0, [("miss", False)])
    ((whole,), later) = searcher.queued[0]
    searcher.settle(whole)
    assert run(made, searcher) == (0, [("negative", False), ("miss", True)])
    ((rest,), again) = searcher.queued[1]
    assert later and again and set(later.keys) == set(again.keys) == {key_of(whole), key_of(rest)}
    searcher.settle(rest)
    assert run(made, searcher) == BESIDE and len(searcher.queued) == 2


@pytest.mark.parametrize("use", [True, False])
def test_a_rest_is_accepted_or_dropped_like_any_kernel(use: bool, tmp_path: Path) -> None:
    made = options(tmp_path, "search", acceptance="measure")
    searcher = Searcher(kit.cache_of(made), tmp_path, use)
    assert run(made, searcher) == (BESIDE if use else NEITHER)
    assert [len(whole.keys) for whole in searcher.asked] == [1]


def test_a_kernel_for_the_whole_takes_the_place_of_that_for_its_rest(tmp_path: Path) -> None:
    made = options(tmp_path, "search")
    searcher = Searcher(kit.cache_of(made), tmp_path)
    run(made, searcher)
    (whole,) = searcher.tasks
    searcher.settle(whole, lasts=-0.5)
    cached = options(tmp_path, "cached")
    assert run(cached) == (REST, [("miss", False), ("hit", True)])
    body = f"for (long i = 0; i < {X.numel()}; i++) ((float*)buffers[2])[i] = {WHOLE};"
    kit.promote(searcher.cache, whole, body, tmp_path)
    mark, regions = run(cached)
    assert mark == round(WHOLE - float(layer(X, W).mean())) and regions == [("hit", False)]
