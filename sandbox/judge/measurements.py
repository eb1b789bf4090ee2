"""Times of candidates and baselines: when a race is run, how often, and whether what it says can be."""

from __future__ import annotations

import time
from typing import Any

from sandbox.failures import Failure, Noisy, Refused
from sandbox.judge.race import Race
from sandbox.judge.rounds import Effort, Record
from sandbox.judge.session import Session
from sandbox.judge.sessions import Sessions
from sandbox.task.task import Task
from sandbox.timing import roofline
from sandbox.timing.decision import SpeedReport
from sandbox.timing.roofline import Achieved
from sandbox.verdict import Baselines, Outcome, lacks_memory
from sandbox.workers.supervisor import WorkerProcess

NOISY_TRIES, NOISY_S = 3, 60.0
"""How many races there are where they come out noisy, and the seconds after which none is begun: on a machine busy with
other work one takes minutes, and a search has a budget."""
CLEAR_LEAD = 1.3
"""Lower bound of a speed-up that nothing changed has never had on a busy machine."""


class Measurements:
    """Takes them for the sessions' task."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions, self.device, self.target = sessions, sessions.device, sessions.target

    def race(self, session: Session, eager_task: Task | None, runner: WorkerProcess) -> Race:
        """A race between the baselines and what `runner` has loaded."""
        roles = self.sessions.roles
        return Race(session, roles.baseline, runner, eager_task, self.device.ceilings)

    def baselines(self, race: Race) -> Baselines | Failure:
        """Times of the baselines. They are equipped beside others' checks; what goes wrong there, as without memory, is
        tried again alone."""
        if race.known is not None:
            return race.known
        self.sessions.settle()
        self.device.load_for_ceilings()
        if race.session.frugal:  # what measures them is gone before inputs are there
            with self.sessions.alone():
                self.device.ceilings()
        self.sessions.make_room(race.baseline, race.candidate)
        self.device.beside_others(race.equip)
        with self.sessions.alone():
            return race.baselines()

    def glance(self, race: Race, pairs: int, worth: float) -> Record | Failure:
        """A quick timing, without controls. See `Race.glance`."""
        baselines = self.baselines(race)
        if not isinstance(baselines, Baselines):
            return baselines
        if not race.is_equipped:
            self.sessions.make_room(race.baseline, race.candidate)
            self.device.beside_others(race.equip)
        with self.sessions.alone():
            return race.glance(pairs, worth)

    def race_until_sure(
        self,
        session: Session,
        eager_task: Task | None,
        effort: Effort,
        evidence: dict[str, Any],
    ) -> SpeedReport | Outcome:
        """Races until one is not noisy; on cpu a small lead has to be won twice. What the last one says, of which the
        evidence is: other work on the machine favours now this process and now that one, for as long as a race."""
        begun, wins = time.monotonic(), 0
        for _ in range(NOISY_TRIES):
            race = self.race(session, eager_task, self.sessions.roles.candidate)
            speed = self.run(race, effort, evidence)
            if isinstance(speed, SpeedReport):
                wins += speed.wins
                if self.target != "cpu" or is_decided(speed, wins):
                    return speed
            elif not isinstance(speed, Noisy) or time.monotonic() - begun > NOISY_S:
                return speed
        return speed if isinstance(speed, Noisy) else Noisy("a small lead was won only once")

    def run(self, race: Race, effort: Effort, evidence: dict[str, Any]) -> SpeedReport | Outcome:
        """One race: alone on the device while it is run, beside others' checks before and after."""
        baselines = self.baselines(race)
        if not isinstance(baselines, Baselines):
            return baselines
        self.sessions.make_room(race.baseline, race.candidate)
        found = self.device.beside_others(race.line_up)
        if not (found is None or isinstance(found, list) or lacks_memory(found)):
            return found
        with self.sessions.alone():
            run = race.run(effort)
        self.sessions.make_room()  # what waited for its comparison needs inputs and the oracle, and nobody else any
        with self.device.shared():
            decided = race.decide(run, evidence)
        if isinstance(decided, SpeedReport) or not lacks_memory(decided):
            return decided
        self.device.release_memory()
        with self.device.turn():
            return race.decide(run, evidence)

    def why_impossible(
        self, task: Task, speed: SpeedReport, evidence: dict[str, Any]
    ) -> Refused | None:
        """A time below the roofline floor cannot be; the ceilings are measured again to be sure."""
        device, limit = self.device, roofline.IMPOSSIBLE
        seconds = speed.seconds["candidate"]
        if seconds < limit * roofline.floor_seconds(task, device.ceilings()):
            device.doubt_ceilings()
            self.sessions.make_room()
            with self.sessions.alone():
                device.ceilings(again=True)
        floor = roofline.floor_seconds(task, device.ceilings())
        evidence["ceilings"], evidence["floor_seconds"] = device.ceilings().to_dict(), floor
        if seconds >= limit * floor:
            return None
        return Refused(f"impossible: {seconds:.3g} s, where memory alone needs {floor:.3g} s")

    def achieved(self, session: Session, speed: SpeedReport) -> Achieved:
        """What rates the candidate's time amounts to."""
        seconds, ceilings = speed.seconds["candidate"], self.device.ceilings()
        return roofline.achieved(session.task, session.operations, seconds, ceilings)


def is_decided(speed: SpeedReport, wins: int) -> bool:
    """Whether a race needs no other to confirm it. wins: of the races so far, with this one."""
    return not speed.wins or wins > 1 or speed.speedup.low > CLEAR_LEAD
