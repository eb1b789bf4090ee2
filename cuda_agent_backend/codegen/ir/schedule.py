"""A schedule: the free choices of a kernel family, one set of parameters for each kernel of a region.

Each family says what its parameters mean (see `ir.parameters`). Here they are only data that survives JSON, so that a
policy can name a schedule in a tool call, and a record can keep it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent_backend.codegen.ir.failure import Unsupported

Parameter = int | str
MAX_PARAMETER = 1 << 20


@dataclass(frozen=True)
class Schedule:
    """Parameters by kernel, in execution order; equal schedules are equal values."""

    kernels: tuple[tuple[tuple[str, Parameter], ...], ...]

    @staticmethod
    def of(*kernels: Mapping[str, Parameter]) -> Schedule:
        """A schedule from one mapping for each kernel."""
        return Schedule(tuple(tuple(sorted(k.items())) for k in kernels))

    def parameters(self, kernel: int) -> dict[str, Parameter]:
        return dict(self.kernels[kernel])

    def only(self) -> dict[str, Parameter]:
        """The parameters of the one kernel that there is. Raises `Unsupported` where there are more, or none."""
        if len(self.kernels) != 1:
            raise Unsupported(f"schedule for {len(self.kernels)} kernels where there is one")
        return self.parameters(0)

    def to_json(self) -> str:
        return json.dumps([dict(k) for k in self.kernels], sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Schedule:
        """Parse what :meth:`to_json` wrote.

        Raises:
            ValueError: not a list of objects whose values are strings or integers from 0 to ``MAX_PARAMETER``.
        """
        data = json.loads(text)
        if not isinstance(data, list) or not all(isinstance(k, dict) for k in data):
            raise ValueError("a schedule is a list with one object of parameters for each kernel")
        for k in data:
            for name, value in k.items():
                if isinstance(value, bool) or not isinstance(value, int | str):
                    raise ValueError(
                        f"schedule parameter {name!r} is {value!r}, not an integer or a string"
                    )
                if isinstance(value, int) and not 0 <= value <= MAX_PARAMETER:
                    raise ValueError(
                        f"schedule parameter {name!r} is {value}, not within 0 and {MAX_PARAMETER}"
                    )
        return Schedule.of(*data)
