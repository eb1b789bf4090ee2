"""Binaries of candidates. A binary that is judged was built from the candidate's source for that judgement."""

from __future__ import annotations

import threading

from sandbox.compile.candidate import Compiled, CompileTimedOut, compile_candidate
from sandbox.compile.candidate import Refused as CompileRefused
from sandbox.compile.disassembly import Inspection, count_instructions
from sandbox.compile.toolchain import Missing
from sandbox.failures import CompileFailed, Failure, Refused, TimedOut
from sandbox.judge.settings import JudgeSettings
from sandbox.plan.candidate import Candidate


class Builds:
    """Compiles candidates in child processes, and remembers what came of it. Safe to use from several threads.

    The binaries lie where no worker can see them, let alone write to them; each worker is handed a copy.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._known: dict[tuple[str, str], Compiled] = {}
        self._stop = threading.Event()

    def compile(self, candidate: Candidate) -> Compiled | Failure:
        """The candidate's binary, compiled once."""
        known = self._known.get(_who_and_what(candidate))
        if known is not None and known.path.exists():
            return known
        return self.build(candidate, "candidates")

    def build_to_judge(self, candidate: Candidate) -> Compiled | Failure:
        """The binary that a judgement is about: of a policy's source always a new one."""
        if candidate.origin == "sketch":
            return self.compile(candidate)
        return self.build(candidate, "judged")

    def build(self, candidate: Candidate, place: str) -> Compiled | Failure:
        """Compile the candidate into a folder of this name in the judge's own."""
        settings = self._settings
        result = compile_candidate(
            candidate,
            settings.scratch / place,
            settings.arch,
            settings.timeouts.compile,
            cxx_flags=tuple(settings.cxx_flags),
            consent=settings.consent,
            stop=self._stop,
        )
        match result:
            case Compiled():
                self._known[_who_and_what(candidate)] = result
                return result
            case CompileTimedOut(seconds=seconds):
                return TimedOut("compilation", seconds)
            case CompileRefused(reason):
                return Refused(reason)
            case _:
                return CompileFailed(result.log, result.passing)

    def interrupt(self) -> None:
        """End the compilers that run, from any thread, as if their time were up. Later ones are left alone."""
        running, self._stop = self._stop, threading.Event()
        running.set()

    def inspect(self, candidate: Candidate) -> Inspection | Failure:
        """What the candidate's machine code consists of."""
        compiled = self.compile(candidate)
        if not isinstance(compiled, Compiled):
            return compiled
        counts = count_instructions(compiled.path, self._settings.target)
        if isinstance(counts, Missing):
            return Inspection(dict(compiled.facts), {}, f"{counts.reason}; {counts.remedy}")
        return Inspection(dict(compiled.facts), counts)


def _who_and_what(candidate: Candidate) -> tuple[str, str]:
    """What a compilation is remembered by: what may be compiled depends on who wrote it."""
    return candidate.origin, candidate.digest
