"""The pass that Inductor runs on every post-grad graph: find regions, look their kernels up, put them in.

It compiles nothing and runs nothing. What takes time (search, acceptance) is asked of a `Searcher`, which works in
another process. It never raises: whatever goes wrong is logged once and the graph is left to Inductor.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch._inductor import config, custom_graph_pass
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph

from cuda_agent_backend import log
from cuda_agent_backend.acceptance.digests import acceptance_digest, kernel_set_digest
from cuda_agent_backend.acceptance.whole_graph import Whole, graph_task, real_inputs
from cuda_agent_backend.frontend.prepack import Split
from cuda_agent_backend.graph.canonical import Canonical, NotATask, canonical, graph_digest
from cuda_agent_backend.graph.layouts import inductor_layouts, keep_eagers, optimised
from cuda_agent_backend.graph.origins import origins
from cuda_agent_backend.graph.unsigned import count_in_signed
from cuda_agent_backend.options import Options
from cuda_agent_backend.partition.candidates import Offer, reports
from cuda_agent_backend.partition.estimate import saving
from cuda_agent_backend.partition.regions import Region, partition
from cuda_agent_backend.partition.report import LEFT, GraphReport, RegionReport, describe
from cuda_agent_backend.partition.splice import choose, splice
from cuda_agent_backend.runtime.cuda_graph import may_replay, still_inputs, wanted
from cuda_agent_backend.runtime.kernels import Hit, Kernels, NoKernel
from cuda_agent_backend.runtime.machine import (
    all_flags,
    arch_of,
    key_of,
    precision_flags,
    toolchain_of,
)
from cuda_agent_backend.search.budget import kept_for_acceptance
from cuda_agent_backend.sources import source_digest
from kernel_cache import CacheUnavailable, Corrupt, KernelKey
from sandbox.task.task import Task

OP_ABI = 1
"""Changes with the schemas or the meaning of the operators `cuda_agent::run_n_m`."""

GraphPass: type[Any] = getattr(
    custom_graph_pass, "CustomInferenceAwareGraphPass", custom_graph_pass.CustomGraphPass
)


class Searcher(Protocol):
    """What the pass asks of the search process. Neither method raises; both promote into the kernel cache."""

    def search(
        self,
        tasks: Sequence[Task],
        budget_s: float,
        recorded: Mapping[str, str] | None = None,
        promises: Mapping[str, float] | None = None,
        rests: Mapping[str, Task] | None = None,
    ) -> dict[str, Any]:
        """Search kernels for tasks, coming back when all are done or the budget ends; what became of each.

        promises: what kernels for a task may save, by its digest. rests: by a task's digest, what is searched after all
        others where nothing wins for it.
        """

    def enqueue(self, tasks: Sequence[Task], later: Whole | None) -> None:
        """Search later, without being waited for, and then measure the whole graph."""

    def accept(self, whole: Whole, budget_s: float) -> dict[str, Any] | str:
        """Measure a graph; what was decided (and kept), or why it was not measured."""


class KernelPass(GraphPass):  # type: ignore[misc]
    """The pass of one compilation.

    before: passes of the user's own, run first. observe: told of each graph before it is changed. recorded: folders
    with real inputs of tasks, by task digest. inputs: a folder with those of the whole graph, if there are any.
    still: which inputs of the graph are parameters, where that is known better than while it compiles.
    """

    def __init__(
        self,
        options: Options,
        kernels: Kernels,
        searcher: Searcher | None = None,
        before: Sequence[Any] = (),
        observe: Callable[[Graph, GraphReport], None] | None = None,
        recorded: Mapping[str, str] | None = None,
        inputs: str = "",
        still: tuple[int, ...] | None = None,
    ) -> None:
        self.options = options
        self.kernels = kernels
        self.searcher = searcher
        self.before = tuple(before)
        self.observe = observe
        self.recorded = recorded
        self.inputs = inputs
        self._still = still
        self.replayable = True
        """Whether what Dynamo made can be replayed, as far as it is known."""
        self.nested = False
        """Whether graphs lie within graphs: Inductor's options then hold for all of them."""
        self.examples: tuple[Any, ...] = ()
        """What the graph is first called with, while it is compiled: real inputs where no folder has them."""
        self.reports: list[GraphReport] = []
        self.later: Whole | None = None

    def uuid(self) -> str | None:
        """Names all that can change what the pass does to a graph; None if the user's own pass does not say."""
        parts = [source_digest(), str(OP_ABI), self.kernels.fingerprint(), self.options.salt()]
        parts += [arch_of("cpu"), str(toolchain_of("cpu")), str(precision_flags())]
        if torch.version.cuda:
            parts.append(str(toolchain_of("cuda")))
        for other in self.before:
            own = other.uuid() if isinstance(other, custom_graph_pass.CustomGraphPass) else None
            if own is None:
                return None
            parts.append(str(own))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def __call__(self, graph: Graph, is_inference: bool = True) -> None:
        """Change the graph in place. Only the user's own passes may raise."""
        for other in self.before:
            aware = isinstance(other, GraphPass) and GraphPass is not (
                custom_graph_pass.CustomGraphPass
            )
            other(graph, is_inference) if aware else other(graph)
        try:
            count_in_signed(graph)
            chosen = self._choose_layouts(graph) if is_inference else {}
            still = self._replayable(graph) if is_inference else None
            with inductor_layouts(graph):
                self._run(graph, chosen, still)
        except Exception as error:
            log.once("hook", f"a graph is left to Inductor: {type(error).__name__}: {error}")
            log.logger("hook").debug("%s", traceback.format_exc())

    def splits(self, parts: Split) -> None:
        """What the graph is first called with has the values that are kept of its weights behind it. Never raises."""
        if len(self.examples) <= max(parts.taken, default=0):
            return
        try:
            with unset_fake_temporarily():
                given = [self.examples[number] for number in parts.taken]
                self.examples = (*self.examples, *parts.compute(given))
        except Exception as error:
            log.once(
                "hook", f"a graph is measured on drawn inputs: {type(error).__name__}: {error}"
            )

    def replays(self, name: str) -> bool:
        """Whether the graph that was compiled is replayed. name: of the graph that Dynamo made. Never raises.

        It is kept under this name, since where torch has the code in a cache of its own, the pass is not run.
        """
        try:
            return self._replays(name)
        except Exception as error:
            log.once("hook", f"a graph is not replayed: {type(error).__name__}: {error}")
            return False

    def _replays(self, name: str) -> bool:
        where = json.dumps([name, self._circumstances("cuda")], sort_keys=True)
        cache, at = self.kernels.cache, (acceptance_digest(where), kernel_set_digest(()))
        known = cache.get_acceptance(*at)
        before = isinstance(known, dict) and bool(known.get("replay"))
        if not self.reports:
            return before
        now = len(self.reports) == 1 and self.reports[0].replayed
        if now != before:
            cache.put_acceptance(*at, {"replay": now})
        return now

    def _choose_layouts(self, graph: Graph) -> dict[str, Any]:
        """Keep eager's layouts where the graph was measured to be faster with them; what was measured.

        Not for training, where the layouts of a forward graph are those of its backward graph's inputs.
        """
        if self.options.acceptance == "trust" or self.nested or config.freezing:
            return {}
        if not optimised(graph) or not self._any_to_search(graph):
            return {}
        name = self._layouts_digest(graph)
        decision = self._decided(name, ())
        if not decision and self._measures:
            decision = self._measure(graph, name, (), self.options.budget_s, eager_layouts=True)
            if isinstance(decision, str):
                self._outdate()
        if isinstance(decision, str):
            return {}
        if decision.get("eager_layouts"):
            keep_eagers()
        return decision

    def _any_to_search(self, graph: Graph) -> bool:
        regions = partition(graph, min_bytes=self.options.min_bytes)
        return any(region.reason is None for region in regions)

    def _layouts_digest(self, graph: Graph) -> str:
        """The name of the choice of layouts: no key of a kernel says for which machine, flags and options it is."""
        values = (node.meta.get("val") for node in graph.nodes)
        device = next(v.device.type for v in values if isinstance(v, torch.Tensor))
        where = json.dumps(self._circumstances(device), sort_keys=True)
        digest = acceptance_digest(graph_digest(graph))
        return hashlib.sha256(f"{digest}:{where}".encode()).hexdigest()

    def _circumstances(self, device: str) -> list[Any]:
        """What decides how fast Inductor's code is, beside the graph."""
        return [arch_of(device), all_flags()["torch"], self.options.plain_inductor]

    def _whole_digest(self, digest: str, still: Sequence[int] | None, eager_layouts: bool) -> str:
        """The name of a graph with its kernels. Where it may be replayed that is measured without any, too."""
        if still is None:
            own = json.dumps(self.options.plain_inductor, sort_keys=True)
            return acceptance_digest(f"{digest}:{own}" if own != "{}" else digest)
        where = [self._circumstances("cuda"), list(still), eager_layouts]
        return acceptance_digest(f"{digest}:replayed:{json.dumps(where, sort_keys=True)}")

    def _replayable(self, graph: Graph) -> tuple[int, ...] | None:
        """Which inputs are parameters, where it is to be measured whether the graph is replayed."""
        if self.nested or not self.replayable or not wanted(self.options):
            return None
        still = still_inputs() if self._still is None else self._still
        return still if still is not None and may_replay(graph) else None

    def _run(self, graph: Graph, layouts: dict[str, Any], still: tuple[int, ...] | None) -> None:
        started = time.perf_counter()
        regions = partition(graph, min_bytes=self.options.min_bytes)
        offers, left = self._offers(regions)
        digest = graph_digest(graph) if regions else ""
        eagers = bool(layouts.get("eager_layouts"))
        self._search(graph, digest, offers, eagers, still)
        hits = [own for o in offers for own in o.both if isinstance(own.found, Hit)]
        acceptance = {}
        if hits or still is not None:
            digest = digest or graph_digest(graph)
            acceptance = self._accept(graph, digest, hits, started, eagers, still)
        use = {offer.key.digest for offer in hits if not offer.dropped}
        used = choose([offer.ways for offer in offers], use)
        kind = "backward" if _is_backward(graph) else "forward"
        made = {id(offer.region): reports(offer, used) for offer in offers}
        told = tuple(r for own in regions for r in made.get(id(own)) or [left[id(own)]])
        seconds = time.perf_counter() - started
        report = GraphReport(digest, kind, told, acceptance, seconds, layouts)
        if self.observe:
            self.observe(graph, report)
        if used:
            splice(graph, used)
        self.reports.append(report)
        log.logger("hook").info("%s, in %.0f ms", report.summary(), 1e3 * seconds)

    def _offers(self, regions: Sequence[Region]) -> tuple[list[Offer], dict[int, RegionReport]]:
        offers: list[Offer] = []
        left: dict[int, RegionReport] = {}
        known: dict[str, tuple[KernelKey, Hit | NoKernel]] = {}
        for region in regions:
            made = self._offer(region, known)
            if isinstance(made, NotATask):
                left[id(region)] = describe(region, LEFT, made.reason)
            else:
                offers.append(made)
        return offers, left

    def _offer(
        self, region: Region, known: dict[str, tuple[KernelKey, Hit | NoKernel]]
    ) -> Offer | NotATask:
        form = NotATask(region.reason) if region.reason else _canonical(region)
        if isinstance(form, NotATask):
            return form
        digest = form.task.digest
        if digest not in known:
            key = key_of(form.task)
            known[digest] = (key, self._find(key))
        rest = self._offer(region.rest, known) if region.rest else None
        return Offer(region, form, *known[digest], None if isinstance(rest, NotATask) else rest)

    def _find(self, key: KernelKey) -> Hit | NoKernel:
        options = self.options
        return self.kernels.find(
            key,
            options.min_speedup,
            options.policy_spec.label,
            options.budget_s,
            consent=options.allow_policy_cpp,
        )

    def _search(
        self,
        graph: Graph,
        digest: str,
        offers: Sequence[Offer],
        eager_layouts: bool,
        still: tuple[int, ...] | None,
    ) -> None:
        """Have what is not known searched, as the mode says, and look again."""
        wanted = [offer.wanted for offer in offers]
        missing = {o.key.digest: o.canonical.task for o in wanted if o is not None}
        if not missing or self.searcher is None or self.options.search == "cached":
            return
        promises: dict[str, float] = defaultdict(float)
        for offer in (own for o in offers for own in o.both):
            promises[offer.canonical.task.digest] += saving(offer.region)
        tasks = sorted(missing.values(), key=lambda task: -promises[task.digest])
        if self.options.search == "background":
            self.later = self._later(graph, digest, offers, eager_layouts, still)
            self.searcher.enqueue(tasks, self.later)
            if any(toolchain_of(task.target) for task in tasks):
                self._outdate()
            return
        budget = self.options.budget_s
        if self.options.acceptance != "trust":
            budget -= kept_for_acceptance(budget)
        rests = {
            o.canonical.task.digest: o.rest.canonical.task
            for o in offers
            if o.searchable and o.rest and o.rest.searchable
        }
        became = self.searcher.search(tasks, budget, self.recorded, promises, rests)
        if any(told.get("begun") is False for told in became.values()):
            self._outdate()
        for offer in (own for o in offers for own in o.both if own.searchable):
            self._look_again(offer, became)

    def _look_again(self, offer: Offer, became: Mapping[str, Any]) -> None:
        """After a search. became: what was made of each task, by digest."""
        found = self._find(offer.key)
        said = became.get(offer.canonical.task.digest, {}).get("reason")
        if isinstance(found, NoKernel) and found.searchable and said:
            found = replace(found, reason=str(said))
        offer.found = found

    def _outdate(self) -> None:
        """Keep this graph's code from other processes, which with it would never come here: its search is not over."""
        outdated = self.kernels.cache.outdate()
        if isinstance(outdated, CacheUnavailable):
            log.once("cache", f"not counted as a change: {outdated}")

    def _later(
        self,
        graph: Graph,
        digest: str,
        offers: Sequence[Offer],
        eager_layouts: bool,
        still: tuple[int, ...] | None,
    ) -> Whole | None:
        whole = graph_task(graph)
        if isinstance(whole, NotATask):
            log.once("accept", f"kernels will not be used: {whole.reason}", logging.INFO)
            return None
        keys = tuple({own.key for offer in offers for own in offer.both})
        name = self._whole_digest(digest, still, eager_layouts)
        return Whole(
            name,
            whole,
            keys,
            eager_layouts=eager_layouts,
            still=still,
            origins=origins(graph),
        )

    def _accept(
        self,
        graph: Graph,
        digest: str,
        hits: Sequence[Offer],
        started: float,
        eager_layouts: bool,
        still: tuple[int, ...] | None,
    ) -> dict[str, Any]:
        """Drop the kernels that the whole graph is not better with; what was measured."""
        if self.options.acceptance == "trust":
            return {}
        keys = sorted({offer.key for offer in hits}, key=lambda key: key.digest)
        name = self._whole_digest(digest, still, eager_layouts)
        decision = self._decided(name, keys)
        if not decision:
            budget = self.options.budget_s
            left = max(budget - time.perf_counter() + started, kept_for_acceptance(budget))
            decision = self._measure(graph, name, keys, left, eager_layouts, still)
        if isinstance(decision, str):
            for offer in hits:
                offer.dropped = decision
            return {}
        use = set(decision.get("use", ()))
        for offer in hits:
            if offer.key.digest not in use:
                offer.dropped = str(
                    decision.get("reason") or "the whole graph is not faster with it"
                )
        return decision

    def _decided(self, name: str, keys: Sequence[KernelKey]) -> dict[str, Any] | str:
        """What is known of a graph with these kernels, "" if nothing, or why that cannot be read."""
        known = self.kernels.cache.get_acceptance(name, kernel_set_digest(keys))
        if isinstance(known, Corrupt):
            log.once("cache", f"left to Inductor: {known}")
        return known if isinstance(known, dict) else str(known or "")

    @property
    def _measures(self) -> bool:
        return self.searcher is not None and self.options.search == "search"

    def _measure(
        self,
        graph: Graph,
        name: str,
        keys: Sequence[KernelKey],
        budget_s: float,
        eager_layouts: bool,
        still: tuple[int, ...] | None = None,
    ) -> dict[str, Any] | str:
        if self.searcher is None or not self._measures:
            return "the whole graph was not measured with it; warm the model first"
        task = graph_task(graph)
        if isinstance(task, NotATask):
            return f"the whole graph cannot be measured: {task.reason}"
        examples = () if _is_backward(graph) else self.examples
        with real_inputs(task, examples) as folder:
            inputs = self.inputs or folder
            whole = Whole(name, task, tuple(keys), inputs, eager_layouts, still, origins(graph))
            return self.searcher.accept(whole, budget_s)


def _canonical(region: Region) -> Canonical | NotATask:
    return canonical(region.nodes, region.outputs, region.target)


def _is_backward(graph: Graph) -> bool:
    return any(node.op == "placeholder" and "tangents" in node.name for node in graph.nodes)
