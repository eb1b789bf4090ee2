"""What errors are held against: ``python -m benchmarks.whole_models.reference REQUEST`` writes the outputs' file.

Eager in the dtype asked for, and the same in float64 where that fits on the device; else in float64 on the first sample
alone, for inference on samples that do not depend on each other; else in float32 with nothing in TF32. The file says
which.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.whole_models.contestant import Request, Work, sampled, some_parameters
from benchmarks.whole_models.subject import for_reference
from cuda_agent_backend.tools.model_oracle import Widened, in_float64
from sandbox.task import flags

WHOLE, FIRST, SINGLE = "float64", "float64 of the first sample", "float32 without TF32"
PLAIN = {"float32_matmul_precision": "highest", "cudnn_allow_tf32": False}


def outputs_of(work: Work, inputs: Sequence[Any], rows: int | None = None) -> list[Tensor]:
    """Sampled results of one call, or of one step before its optimizer. rows: see `sampled`."""
    if not work.training:
        with torch.no_grad():
            return [sampled(work.model(*inputs), rows)]
    loss = work.model(*inputs)
    loss.backward()
    found = [p.grad for p in some_parameters(work.model) if p.grad is not None]
    kept = [sampled(loss), *map(sampled, found)]
    work.model.zero_grad(set_to_none=True)
    return kept


@contextmanager
def in_double() -> Iterator[None]:
    """Within it, what asks for float32 gets float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widened():
            yield
    finally:
        torch.set_default_dtype(before)


def exact(work: Work) -> tuple[str, list[Tensor]]:
    """The first of the ways that has room on the device, and its results. Raises torch.OutOfMemoryError without any."""
    for_reference(work.model)
    model, rows = work.model, work.inputs[0].shape[0]

    def whole() -> list[Tensor]:
        model.double()
        with in_double():
            return outputs_of(work, in_float64(tuple(work.inputs)))

    def first() -> list[Tensor]:
        model.double()  # which memory may have run out in
        inputs = in_float64(tuple(x[:1] for x in work.inputs))
        with in_double():
            return outputs_of(work, inputs, rows)

    def single() -> list[Tensor]:
        model.float()
        inputs = [x.float() if x.is_floating_point() else x for x in work.inputs]
        with flags.applied(PLAIN):
            return outputs_of(work, inputs)

    ways: list[tuple[str, Callable[[], list[Tensor]]]] = [(WHOLE, whole)]
    if work.samples:
        ways.append((FIRST, first))
    for name, way in ways:
        try:
            return name, way()
        except torch.OutOfMemoryError:
            model.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.empty_cache()
    return SINGLE, single()


def main() -> int:
    """Write {"how", "eager", "exact"} for one request."""
    request = Request.from_text(Path(sys.argv[1]).read_text(encoding="utf-8"))
    work = Work(request)
    eager = outputs_of(work, work.inputs)
    how, found = exact(work)
    torch.save({"how": how, "eager": eager, "exact": found}, request.outputs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
