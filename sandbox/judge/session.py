"""One task between judge and workers: input sets, output memory, prepared slots.

Workers may die at any time and come back empty, so every step first equips its worker with what it
lacks; `WorkerProcess.generation` tells which process was equipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.input_bounds import input_bounds
from sandbox.accuracy.nearby import DRAWS, move, several, while_there_is_room
from sandbox.accuracy.oracle import position_rules
from sandbox.accuracy.reference import Reference, draws_of, run_reference
from sandbox.accuracy.rule import Comparison, Draw, Nearby, Oracles
from sandbox.accuracy.sliced_oracle import SlicedOracle
from sandbox.accuracy.written_out import written_out
from sandbox.compile.candidate import is_untrusted_host_code
from sandbox.failures import CompileFailed, Failed, Refused
from sandbox.graph.build import build_graph
from sandbox.judge.input_sets import InputSet, Source
from sandbox.judge.settings import Timeouts
from sandbox.memory.footprint import (
    KEPT_SHARE,
    Footprint,
    bytes_of,
    check_bytes,
    footprint,
    kept_bytes,
    slice_bytes,
)
from sandbox.memory.notes import Held
from sandbox.plan.candidate import Candidate
from sandbox.task import flags as torch_flags
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Ref, Task
from sandbox.timing import machine, roofline
from sandbox.verdict import Baselines, Wrong
from sandbox.workers import guard_bands
from sandbox.workers.shared_memory import Segment, layout
from sandbox.workers.supervisor import Trouble, WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

    import torch

EAGER, INDUCTOR, CANDIDATE = 0, 1, 2
TIMED_SETS = 3
JUDGE = "judge"
_VALUES = ("draw ", "refresh ")
"""What a worker is asked for that is given up when it sheds."""


def key_of(task: Task) -> int:
    """The operator key under which candidates for a task run in the sandbox."""
    return int(task.digest[:15], 16)


def one_op_task(task: Task, key: int) -> Task:
    """The graph that calls a candidate for `task`: a single launcher operator."""
    n, m = len(task.inputs), len(task.outputs)
    args = {f"x{i}": InputRef(i) for i in range(n)}
    node = Node(f"cuda_agent.run_{n}_{m}.default", {"key": key, **args})
    outputs: tuple[Ref, ...] = (NodeRef(0),) if m == 1 else tuple(NodeRef(0, i) for i in range(m))
    return Task(task.target, task.inputs, (node,), outputs, task.output_specs)


def encode_specs(specs: Sequence[TensorSpec]) -> list[Any]:
    """Specs for a command."""
    return [[spec.dtype, list(spec.shape), list(spec.stride)] for spec in specs]


class Session:
    """The state of one task. Raises `TaskError` when the task cannot be built.

    frugal_from: bytes of inputs and outputs from which it is sparing of the device's memory, None for never: the oracle
    is computed in slices, outputs are compared where they lie, in memory of the host, and no process keeps what another
    could need meanwhile (see `docs/memory.md`). What is compared, and with what, is the same.

    kept_share: of the device's memory, what a check may keep between candidates, where that is more than the least.
    """

    frugal = False
    sliced: SlicedOracle | None = None

    def __init__(
        self,
        task: Task,
        flags: Mapping[str, Any],
        timeouts: Timeouts,
        frugal_from: int | None = None,
        kept_share: float = KEPT_SHARE,
    ) -> None:
        self.task, self.flags, self.timeouts = task, flags, timeouts
        self.kept_share = kept_share
        self.module: torch.fx.GraphModule = build_graph(task)
        moved = bytes_of(task.inputs) + bytes_of(task.output_specs)
        self.frugal = frugal_from is not None and moved >= frugal_from
        if self.frugal:
            budget, positions = slice_bytes(moved), position_rules(task)
            other = written_out(self.module)
            self.sliced = SlicedOracle(self.module, budget, other, without=positions)
        self.bounds = input_bounds(task)
        self.output_offsets, self._output_bytes = layout(task.output_specs, guard_bands.GUARD)
        self.sets: dict[int, InputSet] = {}
        self._outputs: dict[str, Segment] = {}
        self._known: dict[tuple[str, str], tuple[int, Any]] = {}
        self._references: dict[int, tuple[int, Reference]] = {}
        self.timed: list[InputSet] = []
        self.baselines: dict[str, Baselines] = {}
        self.held = Held()
        """What processes hold of the device for the task, in a frugal session on cuda."""
        self.readied = False
        """Whether the candidate worker was told to compile what a judgement needs."""

    def input_set(self, number: int, source: Source) -> InputSet:
        """The set of that number, filled with new values."""
        if number not in self.sets:
            self.sets[number] = InputSet(number, self.task.inputs, self.task.target)
        self.sets[number].fill(source, self.bounds)
        return self.sets[number]

    def reference(self, inputs: InputSet) -> Reference | Failed:
        """What the task computes on a set as it is now."""
        known = self._references.get(inputs.number)
        if known is not None and known[0] == inputs.version:
            return known[1]
        import torch

        try:
            found = self.reference_of(inputs.tensors, lambda: inputs.tensors)
        except torch.OutOfMemoryError as error:
            return Failed("inputs", f"OutOfMemoryError: {error}")
        if isinstance(found, Reference) and not self.frugal:
            self._references[inputs.number] = (inputs.version, found)
        return found

    def keeps(self, distributions: Sequence[str]) -> bool:
        """Whether a check on these keeps inputs and expected values between candidates. The usual share needs room for
        one draw of each, though small outputs are drawn more often; a larger one needs room for all draws."""
        target, size = self.task.target, check_bytes(self.task)
        usual = kept_bytes(target, min(self.kept_share, KEPT_SHARE))
        room = kept_bytes(target, self.kept_share)
        every = draws_of(self.task, distributions) * size <= room
        return not self.frugal and (every or len(distributions) * size <= usual)

    def kept_beyond(self, distributions: Sequence[str]) -> int:
        """Bytes of the device that a check on these keeps, in this process and in a candidate's, where a session was
        told a larger share than the usual one, and they are more than that."""
        draws = draws_of(self.task, distributions)
        size = draws * check_bytes(self.task)
        more = self.kept_share > KEPT_SHARE and size > kept_bytes(self.task.target)
        kept = more and self.keeps(distributions)
        return size + draws * bytes_of(self.task.inputs) if kept else 0

    def footprint(self, temporaries: Sequence[TensorSpec] = ()) -> Footprint:
        """What phases hold of the device for the task. temporaries: a candidate's own."""
        return replace(self._footprint, temporaries=bytes_of(temporaries))

    @cached_property
    def _footprint(self) -> Footprint:
        computed = any(not rule.exact for rule in position_rules(self.task).values())
        sliced = None if computed else self.sliced
        return footprint(self.task, self.module, sliced, self.frugal)

    @cached_property
    def operations(self) -> int:
        """Floating-point operations of the task's products: see `roofline.operations`. 0 where they cannot be counted:
        this is feedback, and no verdict may fail for it."""
        try:
            return roofline.operations(self.module)
        except Exception:
            return 0

    def reference_of(
        self,
        tensors: Sequence[torch.Tensor],
        again: Callable[[], Sequence[torch.Tensor]] | None = None,
    ) -> Reference | Failed:
        """What the task computes on tensors; not kept. again: gives them when the oracle is computed after this."""
        if self.held.began(JUDGE):
            machine.peak_bytes(self.task.target)  # what is counted begins here
        return run_reference(self.task, self.module, tensors, self.flags, self.sliced, again)

    def compare(self, comparison: Comparison, draw: Draw, last: bool = True) -> Failed | None:
        """Add a draw to a comparison. What the oracle's pieces raise, and a device without memory, is a value."""
        import torch

        try:
            with torch_flags.applied(self.flags):
                comparison.add(draw, last)
        except Exception as error:
            if draw.pieces is None and not isinstance(error, torch.OutOfMemoryError):
                raise
            return Failed("the comparison", f"{type(error).__name__}: {error}")
        return None

    def nearby(
        self, tensors: Sequence[torch.Tensor] | Callable[[], Sequence[torch.Tensor]]
    ) -> Nearby:
        """What the task computes on tensors that differ from these by rounding; what fails there is left out. Tensors
        that are made anew each time are changed in place."""

        def inputs() -> Iterator[Sequence[torch.Tensor]]:
            if not callable(tensors):
                yield from several(tensors)
                return
            for seed in range(DRAWS):
                made = tensors()
                move(made, seed)
                yield made
                del made

        def ask() -> Iterator[tuple[list[torch.Tensor], Oracles]]:
            try:
                for near in inputs():
                    found = self.reference_of(near)
                    if isinstance(found, Reference):
                        yield found.eager, found.pieces() if found.pieces else found.oracle
                    del near, found
            finally:
                if callable(tensors):  # what was changed is not the set's any more
                    self.release()

        return lambda: while_there_is_room(ask())

    def shed(self, worker: WorkerProcess) -> Trouble | None:
        """Have a worker give up the values of all input sets, and the memory that it keeps for later. On cpu there is
        nothing to give up: it maps the judge's."""
        role = worker.settings.role
        held = [place for place in self._known if place[0] == role and place[1].startswith(_VALUES)]
        if self.task.target == "cpu" or not held or not worker.running:
            return None
        for place in held:
            del self._known[place]
        answer = worker.ask("shed", {"do": "shed"}, self.timeouts.run)
        self.held.ended(role, answer.get("peak") if isinstance(answer, dict) else None)
        return None if isinstance(answer, dict) else answer

    def release(self) -> None:
        """Give up what this process holds of the device for the task, as far as it can be had again."""
        for inputs in self.sets.values():
            inputs.release()
        self._references.clear()
        machine.release_memory(self.task.target)
        self.held.ended(JUDGE, machine.peak_bytes(self.task.target))

    def forget_reference(self, inputs: InputSet) -> None:
        """Free the expected values of a set."""
        self._references.pop(inputs.number, None)

    def share(self, worker: WorkerProcess, inputs: InputSet) -> Trouble | None:
        """See to it that a worker has the set's present values."""
        return self.begin_sharing(worker, inputs)()

    def begin_sharing(
        self, worker: WorkerProcess, inputs: InputSet
    ) -> Callable[[], Trouble | None]:
        """As `share`, without waiting for a worker that draws, which what is returned does. It has to be called before
        the worker is asked anything else."""
        if self.task.target != "cuda" or inputs.source.recorded is not None:
            return lambda: self._share_memory(worker, inputs)
        bounds = [list(b) if b else None for b in self.bounds]
        message = {
            "do": "draw",
            "number": inputs.number,
            "specs": encode_specs(self.task.inputs),
            "bounds": bounds,
            **inputs.source.to_dict(),
            "perturbations": list(inputs.perturbations),
        }
        return self._begin(worker, f"draw {inputs.number}", inputs.version, message)

    def has_drawn(self, worker: WorkerProcess, inputs: InputSet) -> bool:
        """Whether a worker for cuda has the present values of a set that is drawn."""
        known = self._known.get((worker.settings.role, f"draw {inputs.number}"))
        return known == (worker.generation, inputs.version)

    def _share_memory(self, worker: WorkerProcess, inputs: InputSet) -> Trouble | None:
        number = str(inputs.number)
        specs = encode_specs(self.task.inputs)
        message: dict[str, Any] = {"do": "inputs", "number": inputs.number, "specs": specs}
        message["offsets"] = inputs.offsets
        assert inputs.segment is not None
        fds = [inputs.segment.fd]
        trouble = self._once(worker, f"inputs {number}", None, message, fds)
        if trouble is None and self.task.target == "cuda":
            again = {"do": "refresh", "number": inputs.number}
            trouble = self._once(worker, f"refresh {number}", inputs.version, again)
        return trouble

    def share_with_all(self, workers: Sequence[WorkerProcess], inputs: InputSet) -> Trouble | None:
        """As `share`, for workers that draw at the same time; all are done when this returns."""
        begun = list[Callable[[], Trouble | None]]()
        try:
            for worker in workers:
                begun.append(self.begin_sharing(worker, inputs))
        finally:  # an answer left waiting would be taken for a forged one when the worker is asked next
            troubles = [answer() for answer in begun]
        return next((trouble for trouble in troubles if trouble is not None), None)

    def prepare(
        self,
        worker: WorkerProcess,
        slot: int,
        task: Task,
        mode: str,
        announced: Mapping[str, Any] | None = None,
    ) -> Trouble | None:
        """See to it that a slot of the worker holds the task's callable. announced: what it will call."""
        message = {
            "do": "prepare",
            "slot": slot,
            "mode": mode,
            "task": task.to_json(),
            **(announced or {}),
        }
        state = (task.digest, mode)
        return self._once(worker, f"slot {slot}", state, message, timeout=self.timeouts.prepare)

    def load(
        self, worker: WorkerProcess, candidate: Candidate, path: Path
    ) -> Trouble | CompileFailed | Refused | None:
        """Bind the candidate's binary, after making the graph that calls it if there is none yet.

        Untrusted host code gets a process that has held no other, and that does nothing but compute from then on.
        """
        if worker.holds not in ("", candidate.digest):
            worker.renew()
        trouble = self._prepare_call(worker, candidate)
        if trouble is not None:
            return trouble
        untrusted = is_untrusted_host_code(candidate)
        refusal = worker.isolation.why_no_untrusted_code if untrusted else None
        if refusal is not None:
            return Refused(refusal)
        return self._bind(worker, candidate, path, untrusted)

    def choose(
        self, worker: WorkerProcess, number: int, candidate: Candidate, path: Path
    ) -> Trouble | CompileFailed | Refused | None:
        """Have the worker run this one of several candidates from now on, which it keeps under their numbers.

        Not for untrusted host code, which gets a process of its own.
        """
        if is_untrusted_host_code(candidate):
            return Refused("host code of a policy is measured in a process of its own")
        trouble = worker.ready() or self._prepare_call(worker, candidate)
        if trouble is not None:
            return trouble
        role, message = worker.settings.role, {"do": "load", "key": key_of(self.task)}
        self._known.pop((role, "candidate"), None)  # what `load` bound is bound no more
        if self._known.get((role, f"kept {number}")) == (worker.generation, candidate.digest):
            again = {**message, "do": "choose", "number": number}
            answer = worker.ask("choose", again, self.timeouts.run)
            return None if isinstance(answer, dict) else answer
        message |= {"seal": False, "keep": number, "plan": candidate.plan.to_json()}
        message["path"] = str(worker.deliver(path))
        trouble = self._once(worker, f"kept {number}", candidate.digest, message)
        return CompileFailed(trouble.message) if isinstance(trouble, Failed) else trouble

    def _prepare_call(self, worker: WorkerProcess, candidate: Candidate) -> Trouble | None:
        """Compile the graph that calls candidates: the same for all."""
        key = key_of(self.task)
        announced = {"key": key, "plan": candidate.plan.to_json()}
        graph = one_op_task(self.task, key)
        return self.prepare(worker, CANDIDATE, graph, "inductor", announced)

    def make_ready(self, worker: WorkerProcess, candidate: Candidate) -> None:
        """Compile what a judgement needs in the worker. What goes wrong comes up again when it is needed."""
        self._prepare_call(worker, candidate)
        self.prepare(worker, INDUCTOR, self.task, "inductor")

    def _bind(
        self, worker: WorkerProcess, candidate: Candidate, path: Path, untrusted: bool
    ) -> Trouble | CompileFailed | None:
        if untrusted:
            worker.holds = candidate.digest
        message: dict[str, Any] = {"do": "load", "key": key_of(self.task), "seal": untrusted}
        message |= {"path": str(worker.deliver(path)), "plan": candidate.plan.to_json()}
        state = (candidate.digest, untrusted)  # who wrote it is no part of the digest
        trouble = self._once(worker, "candidate", state, message)
        if isinstance(trouble, Failed):
            return CompileFailed(trouble.message)  # an undefined symbol, for instance
        return trouble

    def fetch(self, worker: WorkerProcess) -> list[torch.Tensor] | str | Trouble:
        """Copies of the worker's last outputs, or what is wrong with their metadata. In a frugal session they are not
        copied: the next outputs of that worker will overwrite them."""
        from sandbox.accuracy.metadata import check_metadata

        trouble = self.share_outputs(worker)
        if trouble is not None:
            return trouble
        answer = worker.ask("fetch", {"do": "fetch"}, self.timeouts.run)
        if not isinstance(answer, dict):
            return answer
        found = [(dtype, shape, stride) for dtype, shape, stride in answer["metadata"]]
        wrong = check_metadata(found, self.task.output_specs)
        return wrong or self._copy_outputs(worker)

    def fingerprints(
        self, worker: WorkerProcess, inputs: InputSet, seed: int
    ) -> list[int] | Trouble:
        """What the set holds in the worker's own memory (see `fingerprint`), whose last outputs are given up."""
        message = {"do": "fingerprints", "number": inputs.number, "seed": seed}
        answer = worker.ask("fingerprints", message, self.timeouts.run)
        return answer["fingerprints"] if isinstance(answer, dict) else answer

    def run_guarded(
        self, worker: WorkerProcess, inputs: InputSet, poison: int
    ) -> list[torch.Tensor] | Wrong | Trouble:
        """Outputs of the loaded candidate from a run between guard bands, on poisoned memory."""
        trouble = self.share_outputs(worker) or self.share(worker, inputs)
        if trouble is not None:
            return trouble
        segment = self._outputs[worker.settings.role]
        specs, offsets = self.task.output_specs, self.output_offsets
        if self.task.target == "cpu":
            guard_bands.poison_segment(segment, poison)
        else:
            guard_bands.clobber_guards(segment, offsets, specs, poison)
        message = {"do": "guarded", "set": inputs.number, "poison": poison}
        answer = worker.ask_to_run(message, self.timeouts.run)
        if not isinstance(answer, dict):
            return answer
        damage = answer["damage"] or guard_bands.inspect_segment(segment, offsets, specs, poison)
        if damage:
            return Wrong(inputs.source.distribution, str(damage))
        return self._copy_outputs(worker)

    def _copy_outputs(self, worker: WorkerProcess) -> list[torch.Tensor]:
        segment = self._outputs[worker.settings.role]
        pairs = zip(self.task.output_specs, self.output_offsets, strict=True)
        device = "cuda:0" if self.task.target == "cuda" else "cpu"
        shared = [segment.tensor(spec, offset) for spec, offset in pairs]
        if device != "cpu":
            segment.lock_pages()  # not when it is made: this process may not have used the device yet
        if self.frugal:  # they are compared before the worker is asked for others
            return shared
        return [t.clone() if device == "cpu" else t.to(device) for t in shared]

    def share_outputs(self, worker: WorkerProcess) -> Trouble | None:
        """See to it that a worker has memory to copy outputs to. Any command makes it forget its last outputs, this
        one too: so it comes before a run whose outputs are wanted."""
        role = worker.settings.role
        if role not in self._outputs:
            self._outputs[role] = Segment.create(self._output_bytes)
        specs = encode_specs(self.task.output_specs)
        message = {"do": "outputs", "specs": specs, "offsets": self.output_offsets}
        return self._once(worker, "outputs", None, message, [self._outputs[role].fd])

    def _once(
        self,
        worker: WorkerProcess,
        what: str,
        state: Any,
        message: dict[str, Any],
        fds: Sequence[int] = (),
        timeout: float | None = None,
    ) -> Trouble | None:
        """Send a command unless this very process has answered it with the same state before."""
        return self._begin(worker, what, state, message, fds, timeout)()

    def _begin(
        self,
        worker: WorkerProcess,
        what: str,
        state: Any,
        message: dict[str, Any],
        fds: Sequence[int] = (),
        timeout: float | None = None,
    ) -> Callable[[], Trouble | None]:
        """As `_once`, without waiting for the answer, which what is returned does. It has to be called before the
        worker is asked anything else."""
        place = worker.settings.role, what
        trouble = worker.ready()
        now = worker.generation, state
        if trouble is None and self._known.get(place) != now:
            self._known.pop(place, None)
            trouble = worker.post(what, message, fds)
            if what.startswith(_VALUES):
                self.held.began(worker.settings.role)
            if trouble is None:
                return lambda: self._answered(worker, place, now, timeout or self.timeouts.run)
        return lambda: trouble

    def _answered(
        self, worker: WorkerProcess, place: tuple[str, str], now: tuple[int, Any], timeout: float
    ) -> Trouble | None:
        answer = worker.receive(place[1], timeout)
        if not isinstance(answer, dict):
            return answer
        self._known[place] = now
        return None
