"""What a worker does: hold input sets, prepare callables, run them, hand over outputs.

Baseline and candidate workers are this same program. A slot holds a callable of the form
`f(list of inputs) -> outputs`: the graph in eager mode, or compiled by Inductor. The candidate is
an Inductor-compiled graph too, with one operator that calls the launcher, so wrapper, allocation
and stride checks cost the same on both sides; another candidate only rebinds the operator's key.

The expected values are never here. On cpu, inputs are mapped read-only. The process is confined from its
start (see `confine`), and sealed before it loads host code that our own sketches did not write.

Not covered on cpu: the candidate's code runs in this process and could leave work to a thread, or rewrite
this loop. That is why outputs are fetched after the reply, why every answer needs its request's ticket, and why
code that is not written by our own sketches needs consent. In guarded runs its outputs and temporaries lie between
guard bands; a write beyond those that hits no mapped page kills the worker, one that hits the heap may go unseen.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.clobber_outputs import clobber
from sandbox.accuracy.perturb_inputs import on_device, perturb
from sandbox.graph.build import build_graph
from sandbox.isolation import confine
from sandbox.isolation.mechanisms import Isolation
from sandbox.memory.footprint import FRUGAL_BYTES, bytes_of
from sandbox.task.specs import TensorSpec
from sandbox.timing.machine import peak_bytes, release_memory
from sandbox.workers import inductor_store, protocol
from sandbox.workers.shared_memory import Segment

if TYPE_CHECKING:
    import torch

    from sandbox.launcher import Program

Run = Callable[[list["torch.Tensor"]], Sequence["torch.Tensor"]]


def serve(control_fd: int, isolation: Isolation) -> None:
    """Serve until the judge closes the socket. isolation: what is in force for this process."""
    control = socket.socket(fileno=control_fd)
    worker = Worker(control_fd, isolation)
    while True:
        try:
            head = protocol.read_exactly(control_fd, protocol.HEAD.size)
        except (protocol.Closed, ConnectionError):
            return
        kind, slot, number, ticket = protocol.HEAD.unpack(head)
        if kind in (protocol.RUN_BY_WALL, protocol.RUN_BY_DEVICE):
            by_wall = kind == protocol.RUN_BY_WALL
            _reply_to_run(worker, control_fd, slot, number, ticket, by_wall)
        elif kind == protocol.DROP:
            worker.give_up_outputs()
        else:
            message, fds = protocol.receive_command(control, slot)
            protocol.send_json(control_fd, worker.answer(message, fds), ticket)


def _reply_to_run(
    worker: Worker, fd: int, slot: int, number: int, ticket: bytes, by_wall: bool
) -> None:
    os.write(fd, ticket)
    try:
        protocol.read_exactly(fd, len(protocol.GO))
        seconds, late = worker.run(slot, number, by_wall)
    except Exception:
        error = _error()
        os.write(fd, protocol.RUN_REPLY.pack(ticket, protocol.FAILED, 0.0))
        protocol.send_json(fd, error, ticket)
        return
    how = protocol.LATE if late else protocol.GOOD
    os.write(fd, protocol.RUN_REPLY.pack(ticket, how, seconds))


def _error() -> dict[str, Any]:
    kind, value, _ = sys.exc_info()
    name = kind.__name__ if kind else "Exception"
    return {"error": f"{name}: {value}"[:4000], "trace": traceback.format_exc()[-4000:]}


class Worker:
    """The state behind the commands. Every public method that takes a message answers one."""

    def __init__(self, control_fd: int, isolation: Isolation) -> None:
        self.control_fd, self.isolation = control_fd, isolation
        self.sealed = False
        self.target = "cpu"
        self.config: dict[str, Any] = {}
        self.compilations = 0
        self.sets: dict[int, list[torch.Tensor]] = {}
        self.shared: dict[int, list[torch.Tensor]] = {}
        self.drawn: dict[int, tuple[Any, list[int]]] = {}
        self.slots: dict[int, Run] = {}
        self.outputs: Sequence[torch.Tensor] = ()
        self.segment: Segment | None = None
        self.specs: tuple[TensorSpec, ...] = ()
        self.offsets: list[int] = []
        self.program: Program | None = None
        self.kept: dict[int, Program] = {}
        """Candidates of which `choose` says which one runs."""
        self.clock: Any = None

    def answer(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Carry out a command; a failure is an answer with the key "error"."""
        handlers = {
            "hello": self.hello,
            "inputs": self.inputs,
            "refresh": self.refresh,
            "draw": self.draw,
            "outputs": self.output_buffers,
            "prepare": self.prepare,
            "load": self.load,
            "choose": self.choose,
            "guarded": self.guarded,
            "fetch": self.fetch,
            "fingerprints": self.fingerprints,
            "forget": self.forget,
            "shed": self.shed,
        }
        try:
            if message["do"] != "fetch":
                self.give_up_outputs()
            return handlers[message["do"]](message, fds)
        except Exception:
            return _error()

    def hello(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Import torch, set threads, flags and Inductor's configuration, build the operators."""
        import torch
        import torch._inductor.compile_fx

        from sandbox.launcher import define_ops
        from sandbox.launcher.native import ensure_native
        from sandbox.task import flags

        self.target, self.config = message["target"], message["inductor"]
        torch.set_num_threads(message["threads"])
        flags.apply(message["flags"])
        define_ops()
        native = ensure_native(Path(message["native"])) if message["native"] else None
        memory: dict[str, int] = {}
        if self.target == "cuda":
            from sandbox.timing.cuda_clock import CudaClock
            from sandbox.workers.device_probe import probe

            memory = probe()
            self.clock = CudaClock()
            self._small = torch.zeros(32, device="cuda")
        gc.collect()
        gc.freeze()
        gc.disable()
        return {
            "torch": torch.__version__,
            "native": type(native).__name__,
            "isolation": self.isolation.to_dict(),
            "device_memory": memory,
        }

    def inputs(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Map input set `number` from shared memory. The judge may write new values there later."""
        specs, number = _specs(message["specs"]), message["number"]
        segment = Segment(fds[0], os.fstat(fds[0]).st_size, writable=False)
        pairs = zip(specs, message["offsets"], strict=True)
        self.shared[number] = [segment.tensor(spec, at) for spec, at in pairs]
        return self.refresh(message, [])

    def refresh(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Take over what the judge wrote to the memory of input set `number`; a copy on cuda."""
        number = message["number"]
        self.sets[number] = [on_device(tensor, self.target) for tensor in self.shared[number]]
        return {}

    def draw(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Draw input set `number` on the device itself, as the judge does on its own; or go on perturbing it."""
        from sandbox.accuracy.inputs import make_inputs

        number, perturbations = message["number"], message["perturbations"]
        source = message["seed"], message["distribution"]
        known, done = self.drawn.get(number, (None, []))
        if known != source or perturbations[: len(done)] != done:
            specs, again = _specs(message["specs"]), self.sets.pop(number, None) is not None
            self.sets[number] = make_inputs(specs, *source, message["bounds"], self.target)
            done = []
            # What drawing took beside them. Not of a set that calls are timed on already: the next one would begin by
            # taking memory for its outputs from the device.
            if not again and bytes_of(specs) >= FRUGAL_BYTES:
                release_memory(self.target)
        self.drawn.pop(number, None)  # what fails halfway is drawn anew
        for seed in perturbations[len(done) :]:
            perturb(self.sets[number], seed)
        self.drawn[number] = source, perturbations
        if self.clock is not None:
            self.clock.wait()  # another process may be timed next
        return {}

    def output_buffers(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Memory that outputs are copied to, or written to in a guarded run."""
        self.specs, self.offsets = _specs(message["specs"]), message["offsets"]
        self.segment = Segment(fds[0], os.fstat(fds[0]).st_size, writable=True)
        if self.target == "cuda":
            self.segment.lock_pages()
        return {}

    def prepare(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Make a slot's callable from a task, in eager mode or through Inductor.

        key, plan (for the graph that calls a candidate): what will be loaded.
        """
        from sandbox.launcher import announce
        from sandbox.plan.plan import Plan
        from sandbox.task.task import Task

        if "plan" in message:
            announce(int(message["key"]), Plan.from_json(message["plan"]))
        module = build_graph(Task.from_json(message["task"]))
        slot = message["slot"]
        if message["mode"] == "inductor":
            own = inductor_store.options(self.compilations)
            self.compilations += 1
            self.slots[slot] = compile_inner(module, {**own, **self.config})
            return {}
        self.slots[slot] = lambda inputs: module(*inputs)
        return {}

    def load(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Load a candidate's binary and bind it to a key. seal: only compute from here on. keep: the number that
        `choose` knows it by."""
        from sandbox.launcher import LoadFailed, bind, load_program
        from sandbox.plan.plan import Plan

        if message["seal"] and not self.sealed:
            confine.seal(self.control_fd)
            self.sealed = True
        program = load_program(message["path"], Plan.from_json(message["plan"]))
        if isinstance(program, LoadFailed):
            return {"error": program.reason}
        bind(int(message["key"]), program)
        self.program = program
        if "keep" in message:
            self.kept[message["keep"]] = program
        return {}

    def choose(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Bind a candidate that was kept to its key again."""
        from sandbox.launcher import bind

        program = self.kept[message["number"]]
        bind(int(message["key"]), program)
        self.program = program
        return {}

    def forget(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Drop slots, inputs and outputs of the last task."""
        self.slots.clear()
        self.sets.clear()
        self.shared.clear()
        self.drawn.clear()
        self.kept.clear()
        self.outputs, self.segment = (), None
        gc.collect()
        release_memory(self.target)  # others search on the same device
        return {}

    def shed(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Drop the values of all input sets, and what is kept of the device's memory; the task stays. Says how much
        more than it has then it had at most, since it was told so last."""
        self.sets.clear()
        self.drawn.clear()
        release_memory(self.target)
        peak = peak_bytes(self.target)
        return {"peak": peak - peak_bytes(self.target)}

    def give_up_outputs(self) -> None:
        """Free the last outputs, on cuda clobbered: the next call, perhaps on the same inputs, gets their memory."""
        outputs, self.outputs = self.outputs, ()
        if self.target == "cuda":
            clobber(outputs, [tensor for tensors in self.sets.values() for tensor in tensors])

    def run(self, slot: int, number: int, by_wall: bool = False) -> tuple[float, bool]:
        """One call, whose outputs are kept. Returns seconds, 0 on cpu (the judge measures), and whether it was late."""
        if slot == protocol.NO_SLOT:
            return self._nothing(by_wall)
        self.outputs, seconds, late = self._call(self.slots[slot], self.sets[number], by_wall)
        return seconds, late

    def _call(
        self, call: Run, inputs: list[torch.Tensor], by_wall: bool
    ) -> tuple[Sequence[torch.Tensor], float, bool]:
        if self.clock is None:
            return call(list(inputs)), 0.0, False
        if by_wall:
            outputs, seconds = self.clock.by_wall(call, inputs)
            return outputs, seconds, False
        outputs, seconds, late = self.clock.by_device(call, inputs)
        return outputs, seconds, late

    def _nothing(self, by_wall: bool) -> tuple[float, bool]:
        """A call that does next to nothing: on cuda one small kernel, whose time is that of any launch."""
        if self.clock is None:
            return 0.0, False
        small = self._small
        return self._call(lambda _: [small.zero_()], [], by_wall)[1:]

    def fetch(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Copy the last outputs to the shared memory and describe them."""
        assert self.segment is not None
        found = [
            [str(t.dtype).removeprefix("torch."), list(t.shape), list(t.stride())]
            for t in self.outputs
        ]
        wanted = [[spec.dtype, list(spec.shape)] for spec in self.specs]
        if [entry[:2] for entry in found] == wanted:
            for tensor, spec, at in zip(self.outputs, self.specs, self.offsets, strict=True):
                self.segment.tensor(spec, at).copy_(tensor)
        return {"metadata": found}

    def fingerprints(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """What input set `number` holds, by a seed that is told after the call only (see `fingerprint`)."""
        from sandbox.accuracy.fingerprint import fingerprints

        return {"fingerprints": fingerprints(self.sets[message["number"]], message["seed"])}

    def guarded(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Run the loaded program on buffers that lie between guard bands (see `guard_bands`)."""
        from sandbox.workers.guard_bands import run_guarded

        assert self.program is not None
        assert self.segment is not None
        inputs = self.sets[message["set"]]
        damage = run_guarded(
            self.program, inputs, self.segment, self.offsets, self.specs, message["poison"]
        )
        return {"damage": damage}


def compile_inner(module: torch.fx.GraphModule, config: dict[str, Any]) -> Run:
    """The graph compiled by Inductor: the raw callable, which takes a fresh list and empties it."""
    import torch
    from torch._inductor.compile_fx import compile_fx_inner

    fakes = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    with torch._inductor.config.patch(config), torch.no_grad():
        compiled: Any = compile_fx_inner(module, fakes, is_inference=True)
    call: Run = getattr(compiled, "current_callable", None) or compiled
    return call


def _specs(items: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(dtype, tuple(shape), tuple(stride)) for dtype, shape, stride in items)
