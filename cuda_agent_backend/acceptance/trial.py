"""The measurement of a whole graph: compiled without and with kernels, and both compared on common inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config

from cuda_agent_backend.acceptance.accuracy import less_accurate, less_accurate_in_pieces
from cuda_agent_backend.acceptance.inputs import random_inputs, recorded_inputs, vary
from cuda_agent_backend.acceptance.insert_kernels import insert_kernels
from cuda_agent_backend.acceptance.rng_replay import (
    fill_buffers,
    random_subgraph,
    read_random_from_buffers,
)
from cuda_agent_backend.acceptance.rule import (
    LAYOUTS_MEDIAN,
    MEDIAN,
    REPLAY_MEDIAN,
    Measurement,
    gains_at_least,
)
from cuda_agent_backend.acceptance.speed import Call, measure_speedups
from cuda_agent_backend.graph.layouts import EAGERS
from cuda_agent_backend.graph.origins import restore
from cuda_agent_backend.partition.report import finite
from cuda_agent_backend.runtime.cuda_graph import CudaGraphCall
from cuda_agent_backend.runtime.inductor_timing import compiling
from sandbox.accuracy.nearby import several, while_there_is_room
from sandbox.accuracy.oracle import run_eager, run_oracle
from sandbox.accuracy.pieces import Piece
from sandbox.accuracy.sliced_oracle import SlicedOracle
from sandbox.graph.build import build_graph
from sandbox.memory.footprint import bytes_of, slice_bytes
from sandbox.task.task import Task
from sandbox.timing.device_lock import DeviceLock

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Ground:
    """Inputs of a graph, and what eager, the oracle and plain Inductor make of them; nothing of that where it is made
    when it is needed."""

    inputs: Tensors
    eager: Tensors = ()
    oracle: Tensors = ()
    reference: Tensors = ()


class Trial:
    """The graph without and with kernels, compiled, on common inputs. Used in a process of its own.

    lock: by which it takes turns on the device with other processes. recorded: a folder with real inputs of the graph.
    static_inputs: which inputs are parameters; None for a graph that is not to be replayed. origins: of its operators.
    frugal_from: bytes of inputs and outputs from which what results are compared with is not kept, None for never.
    Results are compared on random inputs and on real ones. Calls are timed on the real ones, since what is in them may
    decide how fast a gather is; but not where a first call on dummies makes nothing but one number, or NaN, of them.
    """

    def __init__(
        self,
        task: Task,
        inductor: Mapping[str, Any],
        seed: int,
        lock: DeviceLock,
        recorded: Path | None = None,
        static_inputs: Sequence[int] | None = None,
        origins: Sequence[str] = (),
        frugal_from: int | None = None,
    ) -> None:
        self.task, self.inductor, self.lock = task, dict(inductor), lock
        self.static_inputs, self.origins, self._seed = static_inputs, origins, seed
        self.replays = False
        self._loaded: list[Call] = []
        self._module = build_graph(task)
        with lock.shared():
            inputs = random_inputs(task, seed)
        self._draw_numbers = self._random_numbers(inputs)
        self._sliced = self._slices(frugal_from)
        self.plain = self._compile(self._rebuilt(), inputs)
        self.grounds = [self._ground(inputs)]
        if (real := recorded_inputs(task, recorded)) is not None:
            self.grounds.append(self._ground(real))
        self.on_real_inputs = len(self.grounds) > 1 and self._vary(self.grounds[-1])
        self.timed = self.grounds[-1 if self.on_real_inputs else 0].inputs

    def measure(self, kernels: Sequence[str]) -> Measurement:
        """Compile the graph with these kernels and compare it with plain Inductor."""
        module = self._rebuilt()
        with self._options():
            missing = insert_kernels(module, frozenset(kernels))
        if missing:
            return Measurement.failed(f"{len(missing)} kernels have no place in the rebuilt graph")
        spliced = self._compile(module, self.timed)
        spliced = self._replayed(spliced) if self.replays else spliced
        return self._compare(spliced, seed=len(kernels), least=MEDIAN)

    def measure_replay(self) -> Measurement:
        """Replay Inductor's code and compare it with launching it. From then on it is replayed if that is better."""
        replayed = self._replayed(self.plain)
        found = self._compare(replayed, seed=0, least=REPLAY_MEDIAN)
        if gains_at_least(found, REPLAY_MEDIAN):
            self.plain, self.replays = replayed, True
        return found

    def measure_layouts(self) -> Measurement:
        """Compile the graph with eager's layouts and compare it with plain Inductor."""
        laid_out = self._compile(self._rebuilt(), self.timed, **EAGERS)
        return self._compare(laid_out, seed=0, least=LAYOUTS_MEDIAN)

    def _compare(self, spliced: Call, seed: int, least: float) -> Measurement:
        """least: the median that is asked for, by one clock."""
        worst = 0.0
        for ground in self.grounds:
            wrong, ratio = self._less_accurate(spliced, ground)
            worst = max(worst, ratio)
            if wrong:
                return Measurement.failed(
                    f"the whole graph is less accurate: {wrong}", error_ratio=finite(worst)
                )
        with self.lock.turn():
            found = measure_speedups(self.plain, spliced, self.timed, self.task.target, seed, least)
        decides = found.get("device") or found["wall"]
        wall = found["wall"] if "device" in found else None
        bounds = decides.median, decides.low, decides.high
        return Measurement(*bounds, True, "", finite(worst), wall, self.on_real_inputs)

    def _less_accurate(self, spliced: Call, ground: Ground) -> tuple[str, float]:
        found = self._outputs(spliced, ground.inputs)
        if self._sliced is not None:
            return self._less_accurate_in_pieces(found, ground.inputs, self._sliced)
        with self.lock.shared():
            return less_accurate(
                found,
                ground.reference,
                ground.eager,
                ground.oracle,
                lambda: while_there_is_room(map(self._expected, several(ground.inputs))),
            )

    def _less_accurate_in_pieces(
        self, found: Tensors, inputs: Tensors, sliced: SlicedOracle
    ) -> tuple[str, float]:
        def expected(tensors: Tensors) -> tuple[Tensors, Iterator[Piece]]:
            return run_eager(self._module, tensors), sliced.pieces(tensors)

        with self.lock.shared():
            return less_accurate_in_pieces(
                found,
                lambda: self._outputs(self.plain, inputs),
                lambda: run_eager(self._module, inputs),
                lambda: sliced.pieces(inputs),
                lambda: while_there_is_room(map(expected, several(inputs))),
            )

    def _slices(self, frugal_from: int | None) -> SlicedOracle | None:
        """What computes the oracle of a large graph in slices; None where all is kept, as with random numbers."""
        moved = bytes_of(self.task.inputs) + bytes_of(self.task.output_specs)
        if frugal_from is None or moved < frugal_from or self._draw_numbers is not None:
            return None
        return SlicedOracle(self._module, slice_bytes(moved))

    def _vary(self, ground: Ground) -> bool:
        if ground.eager:
            return vary(ground.eager)
        with self.lock.shared():
            return vary(run_eager(self._module, ground.inputs))

    def _ground(self, inputs: Tensors) -> Ground:
        plain = self._outputs(self.plain, inputs)
        if (
            self._sliced is not None
        ):  # plain code is loaded now, which it could not be within a shared turn
            return Ground(inputs)
        with self.lock.shared():
            return Ground(inputs, *self._expected(inputs), plain)

    def _expected(self, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Eager's and the oracle's outputs."""
        if self._draw_numbers is not None:
            fill_buffers(self._module, self._outputs(self._draw_numbers, inputs))
        oracle = run_oracle(self.task, self._module, inputs).outputs
        return run_eager(self._module, inputs), oracle

    def _outputs(self, call: Call, inputs: Tensors) -> list[torch.Tensor]:
        """What a call makes of inputs.

        All that it loads, and has timed by Inductor, takes a call before that in which only the timing takes turns:
        loading takes seconds, and the medians of others bear one call beside them.
        """
        if call not in self._loaded:
            with compiling(self.lock, self.task.target):
                call(inputs)
            self._loaded.append(call)
        with self.lock.shared():
            torch.manual_seed(self._seed)  # the same random numbers for all
            return call(inputs)

    def _rebuilt(self) -> torch.fx.GraphModule:
        """The graph as it was, for Inductor to write for it what it writes for the model."""
        module = build_graph(self.task)
        restore(module.graph, self.origins)
        return module

    def _random_numbers(self, inputs: Tensors) -> Call | None:
        """What makes the graph's random numbers for eager and the oracle; None where it has none."""
        subgraph = random_subgraph(self._module)
        if subgraph is None:
            return None
        read_random_from_buffers(self._module)
        call = self._compile(subgraph, inputs)
        self._outputs(call, inputs)  # within a shared turn it could not be loaded
        return call

    def _replayed(self, call: Call) -> Call:
        made = CudaGraphCall(lambda *given: call(given), self.static_inputs or ())
        return lambda given: list(made(*given))

    def _compile(self, module: torch.fx.GraphModule, inputs: Tensors, **more: Any) -> Call:
        from torch._inductor.compile_fx import compile_fx_inner

        with self._options(**more):
            compiled: Any = compile_fx_inner(module, inputs, is_inference=True)
        call = getattr(compiled, "current_callable", None) or compiled
        return lambda given: list(call(list(given)))

    def _options(self, **more: Any) -> AbstractContextManager[None]:
        """Inductor's options, without our pass."""
        patches = {**self.inductor, **more, "post_grad_custom_post_pass": None}
        patched: AbstractContextManager[None] = config.patch(patches)
        return patched
