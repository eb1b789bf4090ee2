"""What a worker for a device leaves of a call's outputs, with a clock and tensors of the host."""

from __future__ import annotations

from typing import Any

import torch

from sandbox.accuracy.clobber_outputs import CLOBBERED, clobber
from sandbox.isolation.mechanisms import Isolation
from sandbox.workers.loop import Worker


class Clock:
    """Makes the call and tells a time."""

    def by_device(self, call: Any, inputs: Any) -> Any:
        return call(inputs), 1.0, False

    def by_wall(self, call: Any, inputs: Any) -> Any:
        return call(inputs), 2.0


def test_a_call_that_does_nothing_does_not_find_the_results_of_the_one_before() -> None:
    memory = torch.zeros(8)  # what the allocator gives to every call
    worker = Worker(-1, Isolation())
    worker.target, worker.clock = "cuda", Clock()
    worker.sets[0] = [torch.arange(8.0)]
    calls = list[int]()

    def lazy(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(1)
        if len(calls) == 1:
            memory.copy_(inputs[0])
        return [memory]

    worker.slots[2] = lazy
    assert worker.run(2, 0) == (1.0, False)
    assert torch.equal(worker.outputs[0], torch.arange(8.0))  # there to be fetched
    worker.give_up_outputs()
    assert len(worker.outputs) == 0
    assert worker.run(2, 0, by_wall=True) == (2.0, False)
    assert bool(worker.outputs[0].isnan().all())


def test_all_of_an_output_is_clobbered_but_no_memory_of_an_input() -> None:
    wide = torch.zeros(6, 4)
    outputs = [wide.t(), torch.zeros(3, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)]
    mine = torch.ones(8)
    clobber([*outputs, mine[2:4], torch.empty(0)], [mine, torch.empty(0)])
    assert bool(wide.isnan().all())
    assert outputs[1].view(torch.uint8).tolist() == [CLOBBERED] * 3
    assert outputs[2].tolist() == [-1, -1]
    assert mine.tolist() == [1.0] * 8
