"""The world of real kernels: the sandbox compiles, checks, times and judges what the policy asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from cuda_agent_backend.agent.tools.toolbox import Toolbox
from sandbox.failures import Failure
from sandbox.task.task import Task
from trainer.rollout.world import WorldFailed
from trainer.world.families import family_of


class JudgeWorld:
    """Tasks by name, judged on this machine. Episodes share one device and take turns on it.

    jobs: episodes at once; compilers work side by side, what is timed does not.
    """

    def __init__(
        self, device: str, train: Mapping[str, Task], test: Mapping[str, Task], jobs: int
    ) -> None:
        from cuda_agent_backend.runtime.machine import arch_of
        from cuda_agent_backend.settings import Settings
        from sandbox import scratch
        from sandbox.judge.judge import Judge
        from sandbox.judge.pool import Pool
        from sandbox.judge.settings import JudgeSettings

        self._tasks = {**test, **train}
        self.tasks: Sequence[str] = tuple(train)
        self.test_tasks: Sequence[str] = tuple(test)
        self.side_by_side = jobs
        self._open = ExitStack()
        settings = Settings.from_environment()
        folder = self._open.enter_context(scratch.folder("train"))
        wanted = JudgeSettings(
            device,
            scratch_dir=folder,
            native_dir=settings.native_dir,
            device_lock=settings.device_lock,
            arch=arch_of(device),
        )
        self._pool = Pool(self._open.enter_context(Judge(wanted)))

    def family(self, task: str) -> str:
        """By its operators."""
        return family_of(self._tasks[task])

    def tools(self, task: str, seed: int) -> Toolbox:
        """See `World`; what the machine answers hangs on no seed."""
        bench: Any = self._pool.seat()
        found = bench.baselines(self._tasks[task])
        if isinstance(found, Failure):
            raise WorldFailed(f"the baselines of {task} cannot be timed: {found.reason}")
        return Toolbox(self._tasks[task], bench)

    def close(self) -> None:
        """End the judge's workers, and remove its scratch folder."""
        self._open.close()
