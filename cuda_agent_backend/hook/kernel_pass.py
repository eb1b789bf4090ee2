"""The pass that Inductor runs on every post-grad graph: find regions, look their kernels up, put them in.

It compiles nothing and runs nothing. What takes time (search, acceptance) is asked of a `Searcher`, which works in
another process. It never raises: whatever goes wrong is logged once and the graph is left to Inductor.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._inductor import custom_graph_pass
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph

from cuda_agent_backend import log
from cuda_agent_backend.acceptance.digests import kernel_set_digest, replay_digest
from cuda_agent_backend.acceptance.whole_graph import WholeGraph
from cuda_agent_backend.frontend.weight_split import Split
from cuda_agent_backend.graph.unsigned import count_in_signed
from cuda_agent_backend.hook.compilation import Compilation
from cuda_agent_backend.hook.restart import Restart
from cuda_agent_backend.hook.walk import Observe, walk
from cuda_agent_backend.options import Options
from cuda_agent_backend.partition.report import GraphReport
from cuda_agent_backend.runtime.kernels import Kernels
from cuda_agent_backend.runtime.machine import arch_of, precision_flags, toolchain_of
from cuda_agent_backend.runtime.replayable import (
    aot_static_inputs,
    copied_bytes,
    may_replay,
    replay_is_wanted,
)
from cuda_agent_backend.search.budget import LEAST_SEARCH_S
from cuda_agent_backend.search.deadline import Deadline
from cuda_agent_backend.search.process_budget import PROCESS
from cuda_agent_backend.search.protocol import Searcher
from cuda_agent_backend.sources import source_digest
from sandbox.failures import why_passing
from sandbox.memory.footprint import FRUGAL_BYTES

OP_ABI = 1
"""Changes with the schemas or the meaning of the operators `cuda_agent::run_n_m`."""

MORE_TOTAL = "cuda_agent.total_budget_s gives it more, and torch._dynamo.reset() begins anew"

GraphPass: type[Any] = getattr(
    custom_graph_pass, "CustomInferenceAwareGraphPass", custom_graph_pass.CustomGraphPass
)


class KernelPass(GraphPass):  # type: ignore[misc]
    """The pass of one compilation.

    before: passes of the user's own, run first. observe: see `walk.Observe`. recorded: folders with real inputs of
    tasks, by task digest. inputs: a folder with those of the whole graph, if there are any.
    static_inputs: which inputs of the graph are parameters, where that is known better than while it compiles.
    """

    def __init__(
        self,
        options: Options,
        kernels: Kernels,
        searcher: Searcher | None = None,
        before: Sequence[Any] = (),
        observe: Observe | None = None,
        recorded: Mapping[str, str] | None = None,
        inputs: str = "",
        static_inputs: tuple[int, ...] | None = None,
    ) -> None:
        self.options = options
        self.kernels = kernels
        self.searcher = searcher
        self.before = tuple(before)
        self.observe = observe
        self.recorded = recorded
        self.inputs = inputs
        self._static_inputs = static_inputs
        self.replayable = True
        """Whether what Dynamo made can be replayed, as far as it is known."""
        self.nested = False
        """Whether graphs lie within graphs: Inductor's options then hold for all of them."""
        self.examples: tuple[Any, ...] = ()
        """What the graph is first called with, while it is compiled: real inputs where no folder has them."""
        self.reports: list[GraphReport] = []
        self.later: WholeGraph | None = None
        self.restartable_since: float | None = None
        """When the compilation began (`time.monotonic`), where it may begin anew."""
        self._named = ""
        """The state of the kernel cache in the key that the compilation goes by."""

    def uuid(self) -> str | None:
        """Names all that can change what the pass does to a graph; None if the user's own pass does not say, or where
        kernels are forced: then torch keeps nothing of the compilation."""
        if self.options.force:
            return None
        try:
            parts = self._own_parts()
        except Exception as error:  # the model is compiled all the same, and anew next time
            self._named = ""
            log.once("hook", f"torch keeps nothing of a compilation: {error}")
            return None
        for other in self.before:
            own = other.uuid() if isinstance(other, custom_graph_pass.CustomGraphPass) else None
            if own is None:
                return None
            parts.append(str(own))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _own_parts(self) -> list[str]:
        """What names all of ours that counts. May raise, as where files cannot be read or there is no memory."""
        self._named = self.kernels.fingerprint()
        parts = [source_digest(), str(OP_ABI), self._named, self.options.salt()]
        parts += [arch_of("cpu"), str(toolchain_of("cpu")), str(precision_flags())]
        return [*parts, str(toolchain_of("cuda"))] if torch.version.cuda else parts

    def __deepcopy__(self, memo: dict[int, Any]) -> KernelPass:
        """Itself: it is one value of Inductor's settings, which torch copies, and has to be told of all graphs."""
        return self

    def __call__(self, graph: Graph, is_inference: bool = True) -> None:
        """Change the graph in place. Only the user's own passes may raise."""
        for other in self.before:
            aware = isinstance(other, GraphPass) and GraphPass is not (
                custom_graph_pass.CustomGraphPass
            )
            other(graph, is_inference) if aware else other(graph)
        try:
            self._run(graph, is_inference)
        except Exception as error:
            log.once("hook", f"a graph is left to Inductor: {type(error).__name__}: {error}")
            log.logger("hook").debug("%s", traceback.format_exc())
            if why_passing(error):  # torch is not to keep the code that comes of it
                self.kernels.outdate()

    def _run(self, graph: Graph, is_inference: bool) -> None:
        count_in_signed(graph)
        options = self.options
        total_s = options.process_budget_s
        seconds = PROCESS.grant(options.budget_s, total_s)
        deadline = Deadline(seconds, unpaid=lambda: getattr(self.searcher, "waited_s", 0.0))
        if deadline.seconds < LEAST_SEARCH_S and options.search == "search":
            log.once("search", f"this process has used its {total_s:.0f} s: {MORE_TOTAL}")
        try:
            self._walk(graph, is_inference, deadline)
        finally:
            if options.search == "search":
                PROCESS.spend(deadline.used_s)

    def _walk(self, graph: Graph, is_inference: bool, deadline: Deadline) -> None:
        compilation = Compilation(
            self.options,
            self.kernels,
            self.searcher,
            self.recorded,
            self.inputs,
            self.examples,
            deadline,
        )
        static_inputs = self._static_inputs_to_replay(graph) if is_inference else None
        layouts = is_inference and not self.nested
        report, later = walk(graph, compilation, static_inputs, layouts, self.observe)
        if is_inference and self._is_worth_a_restart(deadline):
            raise Restart
        self.reports.append(report)
        self.later = later or self.later

    def _is_worth_a_restart(self, deadline: Deadline) -> bool:
        """Whether the next process would find the code in torch's caches if it were compiled anew, and there is time to
        trace it again. While a search is not over, the code is not to be found."""
        began = self.restartable_since
        if began is None or deadline.goes_on or not self._named:
            return False
        tracing_s = deadline.began - began
        return deadline.left_s > tracing_s and self._named != self.kernels.fingerprint()

    def _static_inputs_to_replay(self, graph: Graph) -> tuple[int, ...] | None:
        """Which inputs are parameters, where it is to be measured whether the graph is replayed."""
        if self.nested or not self.replayable or not replay_is_wanted(self.options):
            return None
        static_inputs = aot_static_inputs() if self._static_inputs is None else self._static_inputs
        if static_inputs is None or not may_replay(graph):
            return None
        # Each replay would copy them, which takes longer than launches do, and hold a copy.
        return None if copied_bytes(graph, static_inputs) >= FRUGAL_BYTES else static_inputs

    def note_split(self, parts: Split) -> None:
        """Put the values that are kept of the weights behind what the graph is first called with. Never raises."""
        if len(self.examples) <= max(parts.taken, default=0):
            return
        try:
            with unset_fake_temporarily():
                given = [self.examples[number] for number in parts.taken]
                self.examples = (*self.examples, *parts.compute(given))
        except Exception as error:
            log.once(
                "hook", f"a graph is measured on random inputs: {type(error).__name__}: {error}"
            )

    def is_replayed(self, name: str) -> bool:
        """Whether the graph that was compiled is replayed. name: of the graph that Dynamo made. Never raises.

        It is kept under this name, since where torch has the code in a cache of its own, the pass is not run.
        """
        try:
            return self._known_replay(name)
        except Exception as error:
            log.once("hook", f"a graph is not replayed: {type(error).__name__}: {error}")
            return False

    def _known_replay(self, name: str) -> bool:
        at = replay_digest(name, self.options.plain_inductor), kernel_set_digest(())
        cache = self.kernels.cache
        known = cache.get_acceptance(*at)
        before = isinstance(known, dict) and bool(known.get("replay"))
        if not self.reports:
            return before
        now = len(self.reports) == 1 and self.reports[0].replayed
        if now != before:
            cache.put_acceptance(*at, {"replay": now})
        return now
