"""The world of real kernels: the sandbox compiles, checks, times and judges what the policy asks for."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from cuda_agent_backend.agent.tools.toolbox import Toolbox
from sandbox.failures import Failure
from sandbox.task.task import Task
from trainer.rollout.world import WorldFailed
from trainer.world.families import family_of

if TYPE_CHECKING:
    from sandbox.judge.pool import Pool


class JudgeWorld:
    """Tasks by name, judged on this machine. Episodes share one device and take turns on it. The judge is started by
    `open`, or by the first episode: what asks for names and families alone needs no device.

    jobs: episodes at once; compilers work side by side, what is timed does not. validation: tasks that choose a
    stage's checkpoint.
    """

    def __init__(
        self,
        device: str,
        train: Mapping[str, Task],
        test: Mapping[str, Task],
        jobs: int,
        validation: Mapping[str, Task] | None = None,
    ) -> None:
        validation = validation or {}
        self._device, self._tasks = device, {**test, **validation, **train}
        self.tasks: Sequence[str] = tuple(train)
        self.test_tasks: Sequence[str] = tuple(test)
        self.validation_tasks: Sequence[str] = tuple(validation)
        self.side_by_side = jobs
        self._opened, self._guard = ExitStack(), threading.Lock()
        self._pool: Pool | None = None

    def open(self) -> Pool:
        """Start the judge, unless it is started. Raises `WorldFailed` where this machine has no such device."""
        import torch

        with self._guard:
            if self._pool is None:
                if self._device == "cuda" and not torch.cuda.is_available():
                    raise WorldFailed("torch sees no CUDA device here, and the judge needs one")
                self._pool = self._started()
            return self._pool

    def _started(self) -> Pool:
        from cuda_agent_backend.runtime.machine import arch_of
        from cuda_agent_backend.settings import Settings
        from sandbox import scratch
        from sandbox.judge.judge import Judge
        from sandbox.judge.pool import Pool
        from sandbox.judge.settings import JudgeSettings

        settings = Settings.from_environment()
        folder = self._opened.enter_context(scratch.folder("train"))
        wanted = JudgeSettings(
            self._device,
            scratch_dir=folder,
            native_dir=settings.native_dir,
            device_lock=settings.device_lock,
            arch=arch_of(self._device),
        )
        return Pool(self._opened.enter_context(Judge(wanted)))

    def family(self, task: str) -> str:
        """By its operators."""
        return family_of(self._tasks[task])

    def tools(self, task: str, seed: int) -> Toolbox:
        """See `World`; what the machine answers hangs on no seed."""
        bench: Any = self.open().seat()
        found = bench.baselines(self._tasks[task])
        if isinstance(found, Failure):
            raise WorldFailed(f"the baselines of {task} cannot be timed: {found.reason}")
        return Toolbox(self._tasks[task], bench)

    def close(self) -> None:
        """End the judge's workers, and remove its scratch folder."""
        self._opened.close()
