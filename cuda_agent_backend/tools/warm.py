"""Search ahead of time: everything that `search` mode would do for a model, with its real inputs to verify on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cuda_agent_backend import log
from cuda_agent_backend.options import Options, parse
from cuda_agent_backend.partition.report import HIT, GraphReport
from cuda_agent_backend.settings import Settings
from sandbox import scratch
from sandbox.memory.notes import Notes, merged


@dataclass(frozen=True)
class WarmReport:
    """What warming did: the graphs with their regions, and how long it took. `problem`: why nothing was done, or "".

    leases: by phase, what leases on the device's memory came to (see `sandbox.memory.notes`).
    """

    graphs: tuple[GraphReport, ...]
    seconds: float
    problem: str = ""
    leases: Notes = field(default_factory=dict)

    @property
    def used(self) -> int:
        """Regions that a kernel will be used for."""
        return sum(graph.count(HIT) for graph in self.graphs)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def warm(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    training: bool = False,
    budget_s: float | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> WarmReport:
    """Search kernels for a model as it is called with `inputs`, and measure its graphs with them.

    Runs the model once (training: forward and backward; gradients and buffers are put back), under `torch.no_grad()`
    unless training: a model is warmed for the way in which it will run, with the same sizes, dtypes and flags. Code
    that torch compiled before is forgotten (`torch._dynamo.reset`). budget_s: seconds of search per graph. mode,
    options: as for `torch.compile`. Raises `SettingsError` or `OptionError` on a wrong wish, and whatever the model
    raises; faults of the search are in the report. Where there is no room for real inputs, drawn ones alone are used,
    which is said once.
    """
    from cuda_agent_backend.graph.layouts import choosing
    from cuda_agent_backend.hook.kernel_pass import KernelPass
    from cuda_agent_backend.runtime.kernels import open_kernels
    from cuda_agent_backend.search.client import SearchClient
    from cuda_agent_backend.tools.capture import capture
    from kernel_cache import CacheUnavailable
    from sandbox.timing.device_lock import DeviceLock

    started = time.perf_counter()
    wishes = replace(options_from(mode, options), search="search", patient=True)
    if budget_s is not None:
        wishes = replace(wishes, budget_s=budget_s)
    kernels = open_kernels(wishes.cache_dir, wishes.native_dir)
    if isinstance(kernels, CacheUnavailable):
        return WarmReport((), time.perf_counter() - started, str(kernels))
    lock = DeviceLock(wishes.device_lock)
    if why := lock.why_unusable():
        problem = f"no turns on the device: {why}; CUDA_AGENT_DEVICE_LOCK names the file"
        return WarmReport((), time.perf_counter() - started, problem)
    reports: list[GraphReport] = []
    leases: list[Notes] = []
    with _place_for_inputs() as folder:
        graphs = capture(model, inputs, wishes, training=training, record_in=folder, lock=lock)
        for found in graphs:
            searcher = SearchClient(wishes)
            hook = KernelPass(
                wishes,
                kernels,
                searcher,
                recorded=found.recorded,
                inputs=found.inputs,
                static_inputs=found.static_inputs,
            )
            with choosing(wishes.plain_inductor):
                hook(found.module.graph, is_inference=not training)
            reports += hook.reports
            leases.append(searcher.memory)
    return WarmReport(tuple(reports), time.perf_counter() - started, leases=merged(leases))


@contextmanager
def _place_for_inputs() -> Iterator[Path | None]:
    """A folder for the real inputs of tasks; None where none can be made, as on a full disk."""
    with ExitStack() as stack:
        folder = None
        try:
            folder = Path(stack.enter_context(scratch.folder("warm")))
        except OSError as error:
            log.once("hook", f"a model is warmed on drawn inputs alone: {error}")
        yield folder


def options_from(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """Options over environment, with logging set up. Raises `SettingsError` or `OptionError`."""
    settings = Settings.from_environment()
    log.configure(settings.logs)
    return parse(settings, mode, options)
