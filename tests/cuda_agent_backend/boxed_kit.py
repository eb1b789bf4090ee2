"""What the tests of sketches share whose blocks have boxes of an image (`cuda_halo`, `cuda_phases`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cuda_emulator
import torch
from sketch_kit import Sample, beginning_with, sample
from torch import Tensor

from cuda_agent_backend.codegen.cuda import generate as cuda
from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.plan.candidate import Candidate

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
DEVICE = cuda.DeviceFacts()
TF32 = replace(DEVICE, tf32=("conv",))
"""Where convolutions may run in it."""


@dataclass(frozen=True)
class Boxed:
    """The sketch by its name, and convolutions for it."""

    sketch: str
    cases: dict[str, Case]

    def case(self, name: str) -> Sample:
        function, inputs = self.cases[name]
        return sample(function, *inputs, target="cuda")

    def under(self, it: Sample, box: str, sizes: dict[str, Parameter]) -> Schedule:
        return beginning_with({"sketch": self.sketch, "box": box, **sizes}, it, DEVICE)

    def proposed(self, it: Sample, device: cuda.DeviceFacts) -> list[Schedule]:
        """Its schedules among those that a search begins with."""
        found = cuda.schedules(it.analysis.region, it.analysis.kernels, device)
        return [s for s in found if s.parameters(0)["sketch"] == self.sketch]

    def emulated(self, name: str, schedule: Schedule, folder: Path) -> tuple[Tensor, Tensor]:
        """What the kernels give, and the truth in float64."""
        it, (function, inputs) = self.case(name), self.cases[name]
        source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, TF32)
        (got, *_) = cuda_emulator.run(source, plan, it.inputs, folder)
        return got, function(*(x.double() for x in inputs))

    def assert_as_accurate_as_eager(self, name: str, schedule: Schedule, folder: Path) -> None:
        got, want = self.emulated(name, schedule, folder)
        # eager's own in float32 leaves out the zeros beside an image
        torch.testing.assert_close(got, want.float(), rtol=1e-5, atol=4e-5, equal_nan=True)
        if want.isfinite().all():
            (eager, *_) = self.case(name).want
            own, error = (float((x.double() - want).norm()) for x in (eager, got))
            assert error < 1.5 * own + 1e-7 * float(want.norm())

    def assert_errs_less_than_tf32(self, name: str, schedule: Schedule, folder: Path) -> None:
        """But more than float32: an operand of two parts has 16 bits, TF32's 11."""
        got, want = self.emulated(name, schedule, folder)
        torch.testing.assert_close(got, want.float(), rtol=2e-4, atol=1e-3, equal_nan=True)
        if want.isfinite().all():
            assert 2**-21 < float((got.double() - want).norm() / want.norm()) < 2**-15

    def assert_is_written(self, name: str, device: cuda.DeviceFacts) -> None:
        """All that is proposed: the weights are split before the convolution."""
        it = self.case(name)
        found = self.proposed(it, device)
        for schedule in found:
            _, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, device)
            assert [step.kernel for step in plan.steps][:2] == ["k0_weights", "k0"]
        products = [schedule.parameters(0).get("products", 6) for schedule in found]
        assert found and products.count(3) == (len(found) - 1 if device.tf32 else 0)


def spilled_bytes(
    it: Sample, schedules: Sequence[Schedule], device: cuda.DeviceFacts, folder: Path
) -> list[int]:
    """Of a thread's registers, by each kernel of each schedule."""
    found = []
    for schedule in schedules:
        source, plan = cuda.emit(it.analysis.region, it.analysis.kernels, schedule, device)
        candidate = Candidate("cuda", "cuda", source, plan, "sketch")
        built = compile_candidate(candidate, folder, "sm_90a", 120)
        assert isinstance(built, Compiled), built
        found += [kernel["spill_store_bytes"] for kernel in built.facts.values()]
    return found
