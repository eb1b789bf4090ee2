"""A function compiled with forced kernels, and what became of the regions of its graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from cuda_agent_backend import log
from cuda_agent_backend.backend import compile_with
from cuda_agent_backend.codegen import bugs
from cuda_agent_backend.frontend.recurrent_modules import mark_as_ours
from cuda_agent_backend.hook import forced
from cuda_agent_backend.hook.kernel_pass import KernelPass
from cuda_agent_backend.options import Options, parse
from cuda_agent_backend.partition.report import GraphReport
from cuda_agent_backend.runtime.kernels import Kernels, open_kernels
from cuda_agent_backend.settings import Settings


@dataclass(frozen=True)
class Part:
    """A region: its operators, what became of it ("covered", "left", ...), why, and the family of its kernel."""

    operators: str
    status: str
    reason: str = ""
    family: str = ""


class Forced:
    """``call``, compiled with so many forced schedules. Use as a context: what is said in it is collected."""

    def __init__(self, call: Callable[..., list[Tensor]], schedules: int, scratch: Path) -> None:
        self._reports: list[GraphReport] = []
        self._listener = _Listener()
        options = _options(schedules, scratch)
        kernels = open_kernels(options.cache_dir)
        assert isinstance(kernels, Kernels), kernels

        def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Any:
            hook = KernelPass(options, kernels, observe=lambda _, seen: self._reports.append(seen))
            return compile_with(gm, inputs, options, hook)

        self.call: Callable[..., list[Tensor]] = torch.compile(
            call, backend=mark_as_ours(backend), dynamic=False
        )

    def __enter__(self) -> Forced:
        log.forget()
        bugs.forget()
        log.logger("all").addHandler(self._listener)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        log.logger("all").removeHandler(self._listener)
        forced.forget()

    def parts(self) -> tuple[Part, ...]:
        """The regions of all graphs so far, one entry for those that are alike."""
        found: dict[Part, None] = {}
        for report in self._reports:
            for region in report.regions:
                names = " ".join(
                    f"{name}*{n}" if n > 1 else name for name, n in sorted(region.operators.items())
                )
                for part in _parts(names, region.task, region.reason):
                    found[part] = None
        return tuple(found)

    def any_kernel(self) -> bool:
        """Whether a kernel of ours runs."""
        return any(part.status == "covered" for part in self.parts())

    def turn_to(self, number: int) -> int:
        """See `hook.forced.turn_to`."""
        return forced.turn_to(number)

    def said(self) -> tuple[str, ...]:
        """Warnings of ours, each once."""
        return tuple(dict.fromkeys(self._listener.lines))


def _parts(names: str, task: str, reason: str) -> list[Part]:
    """One for a region; of one whose schedules fare differently, one for each way."""
    outcome = forced.outcome_of(task) if task else None
    if outcome is None:
        return [Part(names, "left", reason)]
    # A later schedule that does not fit takes nothing from a task that has a kernel.
    told = [a for a in outcome.attempts if not (outcome.usable and a.status == "left")]
    tried = {(a.status, _short(a.status, a.reason)): None for a in told}
    return [Part(names, status, why, outcome.family) for status, why in tried]


def _short(status: str, reason: str) -> str:
    """A compiler's words from its first error on."""
    if status != "does not compile":
        return reason[:300]
    at = reason.find("error:")
    return " ".join(reason[max(at, 0) :].split())[:400]


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage()[:400])


def _options(schedules: int, scratch: Path) -> Options:
    settings = Settings.from_environment({"HOME": str(scratch)})
    wishes = {"cuda_agent.force": schedules, "cuda_agent.cache_dir": scratch / "kernels"}
    return parse(settings, None, {**wishes, "fallback_random": True})
