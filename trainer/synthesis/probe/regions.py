"""The regions of a task in canonical form, as the backend would offer them for replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.partition.regions import partition
from cuda_agent_backend.tools.capture import capture
from cuda_agent_backend.tools.warm import options_from
from sandbox.timing.device_lock import DeviceLock
from trainer.synthesis.probe.request import CROWDED, ProbeRequest
from trainer.synthesis.probe.subject import built
from trainer.synthesis.probe.work import Device, is_crowded, limit_device, said


class DeviceTurns:
    """A process's turns as capturing takes them: one within another is part of it."""

    def __init__(self, device: Device) -> None:
        self._device, self._held = device, False

    def turn(self) -> AbstractContextManager[None]:
        """The device alone."""
        return self._within(self._device.alone)

    def shared(self) -> AbstractContextManager[None]:
        """The device together with others that time nothing."""
        return self._within(self._device.shared)

    @contextmanager
    def _within(self, take: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        if self._held:
            yield
            return
        with take():
            self._held = True
            try:
                yield
            finally:
                if torch.cuda.is_initialized():
                    torch.cuda.synchronize()
                self._held = False


def regions(request: ProbeRequest, folder: Path, device: Device) -> dict[str, Any]:
    """Facts: ``regions``, each the JSON of a task once, and ``left``, why others are left to Inductor. What goes wrong
    is among them, as ``failed`` with ``stage``."""
    stage = "build"
    try:
        limit_device(request)
        turns = DeviceTurns(device)
        subject = built(request, folder, turns.shared)
        with turns.shared():
            inputs = subject.draw(0)
        stage = "capture"
        options = replace(options_from(None, None), search="cached", min_bytes=0)
        lock = cast(DeviceLock, turns)
        graphs = capture(subject.model, inputs, options, training=request.training, lock=lock)
        found: dict[str, str] = {}
        left: list[str] = []
        for graph in graphs:
            for region in partition(graph.module.graph):
                form = canonical(region.nodes, region.outputs, region.target)
                if region.reason or not isinstance(form, Canonical):
                    left.append(region.reason or "no canonical form")
                else:
                    found.setdefault(form.task.digest, form.task.to_json())
    except Exception as error:
        return {"failed": said(error), "stage": CROWDED if is_crowded(error, request) else stage}
    return {"regions": list(found.values()), "left": left}
