"""Which tasks are there already: the same text, the same graph, or the same graph with other sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.synthesis.filters.decide import Dropped
from trainer.synthesis.filters.similarity import TOO_ALIKE, Program, most_alike


@dataclass
class Known:
    """What has been kept. Ask in the order of seed numbers: the first of several alike is kept.

    programs: see `similarity.programs_in`.
    """

    programs: Sequence[Program] = ()
    seen: dict[str, str] = field(default_factory=dict)

    def why_dropped(
        self, id: str, code: str, facts: Mapping[str, Any], training: bool
    ) -> Dropped | None:
        """Why a task is dropped; None if it is new, and then it is known from here on."""
        keys = {
            "exact duplicate": f"code {hashlib.sha256(code.encode()).hexdigest()}",
            "duplicate by graph": f"graph {facts['graphs']} {training}",
            "near duplicate": f"structure {facts['structures']} {training}",
        }
        for name, key in keys.items():
            if key in self.seen:
                return Dropped(name, f"like {self.seen[key]}")
        alike = most_alike(code, self.programs)
        if alike is not None:
            return Dropped("excluded program", f"more than {TOO_ALIKE} like {alike.name}")
        self.seen |= dict.fromkeys(keys.values(), id)
        return None
