"""What one process does: ``python -m benchmarks.whole_models.contestant REQUEST``, with JSON lines both ways.

It imports what it needs and waits for the command ``go``. Then it builds the model, compiles it, calls it once, and
says how long that took and what calls hold at their peak. ``time`` answers with the seconds of one call, ``graphs``
with what became of ours, and the end of the input ends it. The first call's results, a fixed sample of each tensor, go
into a file by which errors are judged.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.commands import commands
from benchmarks.store import Facts
from benchmarks.whole_models.cells import DEFAULT

INDUCTOR, OURS, EAGER = "inductor", "cuda_agent", "eager"
CUDAGRAPHS = "triton.cudagraphs"
SAMPLE = 1 << 20
"""Elements of each tensor that are compared."""
GRADIENTS = 48
"""Parameters whose gradients are compared, spread over the model."""
RATE = 1e-5
WARM_UP = 3


@dataclass(frozen=True)
class Request:
    """One process's work. backend: one of `INDUCTOR`, `OURS`, `EAGER`. outputs: the file for results, or "".

    options: of `torch.compile`, ours. toy: of `subject.build`.
    """

    target: str
    model: str
    dtype: str
    kind: str
    mode: str
    backend: str
    outputs: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    toy: bool = False

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_text(text: str) -> Request:
        """From JSON."""
        return Request(**json.loads(text))


class Work:
    """A model and what is called again and again: a call in inference, a step with its optimizer in training.

    step: returns what the compiled code returned, without which nothing keeps it alive while it is timed.
    """

    def __init__(self, request: Request) -> None:
        import torch

        from benchmarks.whole_models.registry import SUBJECTS
        from benchmarks.whole_models.subject import WithLoss, build

        subject = SUBJECTS[request.target][request.model]
        made = build(subject, request.target, getattr(torch, request.dtype), toy=request.toy)
        self.training = request.kind == "training"
        self.inputs = (made.target, *made.inputs) if self.training else made.inputs
        self.samples = made.samples and not self.training
        self.model = WithLoss(made.model.train(), made.loss) if self.training else made.model
        self.call = compiled(self.model, request)
        self._optimizer = (
            torch.optim.AdamW(
                self.model.parameters(), lr=RATE, fused=request.target == "cuda" or None
            )
            if self.training
            else None
        )

    def step(self) -> Any:
        """One call, or one step."""
        import torch

        if not self.training:
            with torch.no_grad():
                return self.call(*self.inputs)
        loss = self.backward()
        self.update()
        return loss

    def backward(self) -> Any:
        """Gradients of a step, without the optimizer."""
        loss = self.call(*self.inputs)
        loss.backward()
        return loss

    def update(self) -> None:
        """The optimizer's part of a step."""
        assert self._optimizer is not None
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def forget(self) -> None:
        """Give back the optimizer's memory, and compiled code as far as it is held here: no step follows."""
        self._optimizer, self.call = None, self.model

    def first(self) -> tuple[float, list[Any]]:
        """Seconds of the first call or step, and its results: outputs, or the loss and some gradients."""
        begin = time.perf_counter()
        result = self.backward() if self.training else self.step()
        wait(self.inputs)
        seconds = time.perf_counter() - begin
        found = [sampled(result)]
        if self.training:
            found += [sampled(p.grad) for p in some_parameters(self.model) if p.grad is not None]
            begin = time.perf_counter()
            self.update()
            wait(self.inputs)
            seconds += time.perf_counter() - begin
        return seconds, found


def compiled(model: Any, request: Request) -> Callable[..., Any]:
    """The model as the request has it compiled."""
    import torch

    if request.backend == EAGER:
        return model  # type: ignore[no-any-return]
    if request.backend == INDUCTOR:
        return torch.compile(model, mode=None if request.mode == DEFAULT else request.mode)
    return torch.compile(model, backend="cuda_agent", options=options_of(request))


def options_of(request: Request) -> dict[str, Any]:
    """Ours and those of the mode: `torch.compile` takes either a mode or options, and these mean the same.

    CUDA graphs are on both sides or on neither.
    """
    from torch._inductor import list_mode_options

    modes = dict(list_mode_options())
    theirs = {} if request.mode == DEFAULT else dict(modes[request.mode])
    ours = {"cudagraphs": bool(theirs.get(CUDAGRAPHS)), "progress": "off", **request.options}
    return {**theirs, **{f"cuda_agent.{name}": value for name, value in ours.items()}}


def some_parameters(model: Any) -> list[Any]:
    """Parameters spread evenly over the model, the first and the last among them."""
    every = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if len(every) <= GRADIENTS:
        return every
    return [every[round(n * (len(every) - 1) / (GRADIENTS - 1))] for n in range(GRADIENTS)]


def sampled(tensor: Any, rows: int | None = None) -> Any:
    """A copy on the host: the tensor, or of a large one a part of each row, the same places in every process.

    rows: of the whole, where the tensor is only its first rows.
    """
    import torch

    flat = tensor.detach()
    if flat.dim() == 0:
        return flat.to("cpu", copy=True)
    rows = flat.shape[0] if rows is None else rows
    flat = flat.reshape(flat.shape[0], -1)
    each = max(1, SAMPLE // rows)
    if each >= flat.shape[1]:
        return flat.to("cpu", copy=True)
    generator = torch.Generator().manual_seed(5)
    places = torch.randperm(flat.shape[1], generator=generator)[:each].sort().values
    return flat[:, places.to(flat.device)].to("cpu")


def wait(inputs: Sequence[Any]) -> None:
    """Until the device has done all."""
    import torch

    if inputs[0].is_cuda:
        torch.cuda.synchronize()


def memory(target: str) -> Facts:
    """Bytes at peak since the last `reset`: of tensors, and of what torch's allocator took from the device for them."""
    import torch

    if target != "cuda":
        return {}
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }


def reset(target: str) -> None:
    """Begin to look for a new peak."""
    import gc

    import torch

    gc.collect()
    if target == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@contextmanager
def own_stdout() -> Iterator[Callable[[Facts], None]]:
    """What is printed within goes to standard error; the function writes a line to where it would have gone."""
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w", encoding="utf-8") as out:

        def say(facts: Facts) -> None:
            out.write(json.dumps(facts) + "\n")
            out.flush()

        yield say


def serve(request: Request, commands: Iterator[str], say: Callable[[Facts], None]) -> None:
    """See the module."""
    import torch

    from cuda_agent_backend.runtime.clocks import clock_of

    load(request)
    if next(commands, "").strip() != "go":
        return
    begin = time.perf_counter()
    work = Work(request)
    wait(work.inputs)
    built = time.perf_counter() - begin
    reset(request.target)
    first, found = work.first()
    if request.outputs:
        torch.save(found, request.outputs)
    del found
    compiling = memory(request.target)
    for _ in range(WARM_UP):
        work.step()
    reset(request.target)
    work.step()
    wait(work.inputs)
    held = memory(request.target)  # of steps alone: the clock has memory of its own
    say({"first_s": first, "build_s": built, "compiling": compiling, "held": held})
    clock = clock_of(request.target, [*work.model.parameters(), *work.inputs])
    for command in commands:
        match command.strip():
            case "time":
                device, wall = clock.time(work.step)
                say({"device": device, "wall": wall})
            case "graphs":
                say(graphs_of(work, request))


def load(request: Request) -> None:
    """Import what the model is built with, by building a tiny one from the same code, without memory of any device."""
    import torch

    from benchmarks.whole_models.registry import SUBJECTS
    from benchmarks.whole_models.subject import build

    if request.target == "cuda":
        subject = SUBJECTS[request.target][request.model]
        build(subject, "meta", getattr(torch, request.dtype), toy=True)


def graphs_of(work: Work, request: Request) -> Facts:
    """How many regions the graphs of ours have, and what runs in them."""
    import torch

    from cuda_agent_backend.partition.report import HIT
    from cuda_agent_backend.tools.explain import explain

    options = options_of(request)
    torch._dynamo.reset()
    work.forget()
    reset(request.target)
    with torch.enable_grad() if work.training else torch.no_grad():
        graphs = explain(work.model, *work.inputs, training=work.training, options=options).graphs
    return {
        "regions": sum(graph.wholes for graph in graphs),
        "promoted": sum(graph.count(HIT) for graph in graphs),
        "eager_layouts": sum(graph.eager_layouts for graph in graphs),
        "replayed": sum(graph.replayed for graph in graphs),
        "graphs": [graph.to_json() for graph in graphs],
    }


def main() -> int:
    """Serve one request."""
    request = Request.from_text(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with own_stdout() as say:
        serve(request, commands(), say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
