"""The tools that make candidates and try them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any, cast

from cuda_agent_backend.agent.memory.offer import offers
from cuda_agent_backend.agent.observation import (
    compile_errors,
    cut,
    errors_of,
    facts_in_words,
    speed_of,
)
from cuda_agent_backend.agent.protocol import BadArguments
from cuda_agent_backend.agent.tools.kernel_specs import (
    COMPILE,
    INSPECT,
    LOOK,
    PROFILE,
    SKETCH,
    SUBMIT,
    VERIFY,
)
from cuda_agent_backend.agent.tools.languages import language_of
from cuda_agent_backend.agent.tools.outcomes import describe, output_names
from cuda_agent_backend.agent.tools.tool import Answer, Tool, failed
from cuda_agent_backend.agent.tools.workbench import Workbench
from cuda_agent_backend.agent.workspace.folder import BASELINES, Refusal
from cuda_agent_backend.codegen.api import analyse, generate, schedules
from cuda_agent_backend.codegen.covered_task import Analysis
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.schedule_space import space_of
from sandbox.compile.disassembly import Inspection
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Plan, PlanError
from sandbox.verdict import Baselines

WORTH_CHECKING = 1.0
"""What is slower than the faster baseline, or than the best so far, is timed only: checking takes longer than that."""
SKETCHED = "the sketch"
"""What the source of a sketch is called."""


class KernelWork(Workbench):
    """The tools that make candidates and try them. Methods with a leading underscore are tools."""

    @cached_property
    def analysis(self) -> Analysis | NotCovered:
        """In which form a sketch covers the task."""
        return analyse(self.task)

    def kernel_tools(self) -> list[Tool]:
        """The tools of this group; `compile` where there are files."""
        from_files = [Tool(COMPILE, self._compile)] if self.workspace else []
        return [
            Tool(LOOK, self._look),
            Tool(SKETCH, self._sketch),
            *from_files,
            Tool(INSPECT, self._inspect),
            Tool(VERIFY, self._verify),
            Tool(PROFILE, self._profile),
            Tool(SUBMIT, self._submit),
        ]

    def _look(self) -> Answer:
        result = self.bench.baselines(self.task)
        if not isinstance(result, Baselines):
            return failed(result.reason)
        answer, covered = self.note_baselines(result), self._covered()
        if isinstance(covered, NotCovered):
            known = offers(self.neighbours, (), lambda _: False)
            return {**answer, "sketch": None, "why_not": covered.reason, "neighbours": known}
        sketch, proposed = covered
        return {
            **answer,
            "sketch": sketch,
            "schedules": [json.loads(s.to_json()) for s in proposed],
            "space": space_of(proposed).describe(),
            "neighbours": offers(self.neighbours, proposed, self._fits),
        }

    def note_baselines(self, found: Baselines) -> Answer:
        """Keep the baselines, also as a file of the workspace; the answer about them.

        Where the file cannot be written, the answer has a remark.
        """
        self.baselines = found
        answer: Answer = {
            "ok": True,
            "eager_us": found.eager_seconds * 1e6,
            "inductor_us": found.inductor_seconds * 1e6,
            "overhead_us": found.overhead_seconds * 1e6,
            "floor_us": found.floor_seconds * 1e6,
            "room": found.room,
        }
        if self.workspace is not None:
            try:
                self.workspace.provide(BASELINES, _pretty({**answer, **self._ceilings()}))
            except OSError as error:  # a shell may have put anything there, or have filled the disk
                answer["remarks"] = [
                    f"{BASELINES} was not written: {error}; remove what is in its place, and look again"
                ]
        return answer

    def _covered(self) -> tuple[str, list[Schedule]] | NotCovered:
        """What the sketch is called, and the schedules that it proposes."""
        if isinstance(self.analysis, NotCovered):
            return self.analysis
        return self.analysis.family, schedules(self.analysis, self.facts)

    def _written(self, schedule: Schedule) -> Candidate | NotCovered:
        """The candidate that a schedule stands for."""
        if isinstance(self.analysis, NotCovered):
            return NotCovered(f"no sketch covers this task: {self.analysis.reason}")
        return generate(self.analysis, schedule, self._gpu_facts())

    def _fits(self, schedule: Schedule) -> bool:
        """Whether a sketch of this task takes the schedule."""
        return isinstance(self._written(schedule), Candidate)

    def _gpu_facts(self) -> DeviceFacts | None:
        return self.facts if isinstance(self.facts, DeviceFacts) else None

    def _ceilings(self) -> dict[str, Any]:
        """What the machine was measured to do; timing the baselines has measured it."""
        measured = getattr(self.bench, "ceilings", None)
        return {"ceilings": asdict(measured())} if callable(measured) else {}

    def _sketch(self, schedule: list[Any]) -> Answer:
        try:
            parsed = Schedule.from_json(json.dumps(schedule))
        except ValueError as error:
            return failed(f"schedule does not fit: {error}")
        made = self._written(parsed)
        if isinstance(made, NotCovered):
            return failed(made.reason)
        return self._add(made, SKETCHED)

    def _compile(self, source: str, plan: str) -> Answer:
        assert self.workspace is not None
        language = language_of(source, self.task.target)
        texts = [self.workspace.text_of(path) for path in (source, plan)]
        for path, found in zip((source, plan), texts, strict=True):
            if isinstance(found, Refusal):
                return failed(f"{path}: {found.reason}")
        code, plan_text = cast(list[str], texts)
        try:
            parsed = Plan.from_json(plan_text)
        except PlanError as error:
            return failed(f"plan: {error}")
        if parsed.target != self.task.target:
            return failed(f"the plan is for {parsed.target}, the task for {self.task.target}")
        made = Candidate(parsed.target, language, code, parsed, "policy")
        return self._add(made, source)

    def _add(self, candidate: Candidate, name: str) -> Answer:
        outcome = self.bench.compile(candidate)
        if hasattr(outcome, "reason"):
            return not_built(outcome, candidate, name)
        digest = candidate.digest[:12]
        self.candidates[digest] = candidate
        facts: Mapping[str, Mapping[str, Any]] = getattr(outcome, "facts", {})
        self.built[digest] = facts
        return described_build(digest, facts)

    def _candidate(self, name: str) -> Candidate:
        if name not in self.candidates:
            known = ", ".join(self.candidates) or "none yet"
            raise BadArguments(f"no candidate {name!r}; there are: {known}")
        return self.candidates[name]

    def _inspect(self, candidate: str) -> Answer:
        found = self.bench.inspect(self._candidate(candidate))
        if not isinstance(found, Inspection):
            return failed(found.reason)
        remarks = facts_in_words(found.kernels)
        answer: Answer = {
            "ok": True,
            "kernels": found.kernels,
            "instructions": found.instructions,
        }
        answer |= {"remarks": remarks} if remarks else {}
        return answer | ({"why_no_instructions": found.why_not} if found.why_not else {})

    def _verify(self, candidate: str) -> Answer:
        made = self._candidate(candidate)
        return describe(self.bench.verify(self.task, made), output_names(made))

    def _profile(self, candidate: str) -> Answer:
        made = self._candidate(candidate)
        others = [s for name, s in self.promising().items() if name != candidate]
        found = self.bench.profile(self.task, made, worth=max([WORTH_CHECKING, *others]))
        answer = describe(found, output_names(made))
        if "speedup" in answer:
            self.profiles[candidate] = answer["speedup"]["median"]
        facts = self.built.get(candidate)
        return answer | ({"facts": facts} if facts else {})

    def _submit(self, candidate: str = "", reason: str = "") -> Answer:
        if not candidate:
            self.finished = reason or "the policy gave up without a reason"
            return {"ok": True, "ended": self.finished}
        made = self._candidate(candidate)
        verdict = self.bench.judge(self.task, made)
        self.verdicts[candidate] = verdict
        if verdict.wins:
            self.finished = f"promoted: {verdict.reason}"
        answer: Answer = {
            "ok": verdict.wins,
            "status": verdict.status,
            "reason": verdict.reason,
            "reward": verdict.reward,
        }
        answer |= speed_of(verdict.speed) if verdict.speed else {}
        if verdict.accuracy is not None and not verdict.accuracy.passes:
            answer["outputs"] = errors_of(verdict.accuracy, output_names(made))
        return answer


def not_built(outcome: Any, candidate: Candidate, name: str) -> Answer:
    """What is said of a candidate that does not compile. name: what its source is called."""
    log = getattr(outcome, "log", "")
    errors = compile_errors(log, candidate.source, name)
    return failed(outcome.reason, log=cut(log), **({"errors": errors} if errors else {}))


def described_build(digest: str, facts: Mapping[str, Mapping[str, Any]]) -> Answer:
    """What is said of a candidate that compiles. facts: by kernel."""
    remarks = facts_in_words(facts)
    answer: Answer = {"ok": True, "candidate": digest, "facts": facts}
    return answer | ({"remarks": remarks} if remarks else {})


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
