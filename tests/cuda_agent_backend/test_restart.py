"""A compilation that finds kernels goes by a key of torch's caches under which the next process finds its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch
from torch import Tensor

from cuda_agent_backend.search import interrupts, process_budget
from cuda_agent_backend.search.durations import Durations
from sandbox.task.task import Task

X = torch.arange(48.0).reshape(6, 8) / 48
MARK = 1000.0


def exp_of_sum(x: Tensor) -> Tensor:
    return (x + x.sin()).exp().neg()


class Finds:
    """A searcher that promotes a kernel, recognisable by its result, in as many searches as it is told to."""

    def __init__(self, options: Any, folder: Path, settles: bool) -> None:
        self.cache, self.folder, self.settles, self.searches = (
            kit.cache_of(options),
            folder,
            settles,
            0,
        )

    def search(self, tasks: list[Task], *_: Any) -> dict[str, Any]:
        self.searches += 1
        for task in tasks if self.settles else ():
            body = kit.elementwise(task, f"-std::exp(a + std::sin(a)) + {MARK}")
            kit.promote(self.cache, task, body, self.folder)
        return {}

    def accept(self, *_: Any) -> str:
        return "not today"

    def enqueue(self, *_: Any) -> None: ...


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's caches, on and empty."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr(process_budget.PROCESS, "spent_s", 0.0)


@pytest.mark.parametrize("settles", [True, False])
def test_code_with_kernels_that_were_found_meanwhile_is_found_by_the_next_compilation(
    tmp_path: Path, caches: None, settles: bool
) -> None:
    options = kit.options_in(tmp_path, search="search")
    searcher = Finds(options, tmp_path, settles)
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=False):
        backends = [kit.backend_for(options, searcher=searcher) for _ in range(2)]
        for backend in backends:
            torch._dynamo.reset()
            found = torch.compile(exp_of_sum, backend=backend)(X)
            expected = exp_of_sum(X) + (MARK if settles else 0.0)
            torch.testing.assert_close(found, expected)
    torch._dynamo.reset()
    first, second = (backend.passes[0].reports for backend in backends)
    assert len(first) == 1, "the graph that is begun anew is reported once"
    assert len(second) == (0 if settles else 1), "what is settled comes out of torch's caches"
    assert searcher.searches == (1 if settles else 2)


def test_a_graph_that_the_process_has_no_time_for_is_left_to_the_next_process(
    tmp_path: Path, caches: None
) -> None:
    options = kit.options_in(tmp_path, search="search", total_budget_s=2e-9)
    searcher = Finds(options, tmp_path, settles=True)
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=False):
        backend = kit.backend_for(options, searcher=searcher)
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(exp_of_sum, backend=backend)(X), exp_of_sum(X))
    torch._dynamo.reset()
    assert searcher.searches == 0 and len(backend.passes[0].reports) == 1
    assert kit.cache_of(options).generation() == 1, "the next process has a turn for it"


def test_seconds_that_the_user_interrupted_do_not_count_as_spent(
    tmp_path: Path, caches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "_last", -1.0)
    options = kit.options_in(tmp_path, search="search")

    class Interrupted(Finds):
        def search(self, tasks: list[Task], *rest: Any) -> dict[str, Any]:
            if self.settles:
                interrupts.ends_the_search()
            return super().search([], *rest)

    for settles in (True, False):
        torch._dynamo.reset()
        backend = kit.backend_for(options, searcher=Interrupted(options, tmp_path, settles))
        with torch.no_grad():
            torch.compile(exp_of_sum, backend=backend)(X)
        assert bool(Durations(options.cache_dir).read().spent) != settles
    torch._dynamo.reset()
