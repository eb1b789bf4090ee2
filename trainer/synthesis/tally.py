"""Which entries make the set: taken in the order of seed numbers, so that it is the same however it was made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.synthesis.filters.duplicates import Known
from trainer.synthesis.filters.quotas import Quotas
from trainer.synthesis.filters.similarity import Program
from trainer.synthesis.one_task import PASSED


@dataclass
class Tally:
    """How a run stands. kept: entries in the set. dropped: by filter. cpu_s: seconds of processors, by what for."""

    known: Known
    quotas: Quotas
    kept: list[dict[str, Any]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    cpu_s: Counter[str] = field(default_factory=Counter)
    looked_at: int = 0

    @staticmethod
    def of(count: int, programs: Sequence[Program] = ()) -> Tally:
        """An empty one, for a set of so many tasks."""
        return Tally(Known(programs), Quotas(count))

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take an entry of the journal, whose seed number is above all before it."""
        self.looked_at += 1
        self.cpu_s.update(entry.get("cpu_s", {}))
        if entry["status"] != PASSED:
            self.dropped[entry["filter"]] += 1
            return
        task = entry["task"]
        found = self.quotas.why_dropped(task["families"], task["ops"]) or self.known.why_dropped(
            task["id"], task["code"], entry["facts"], task["training"]
        )
        if found is not None:
            self.dropped[found.filter] += 1
            return
        self.quotas.take(task["families"], task["ops"])
        self.kept.append(dict(entry))

    def report(self) -> dict[str, Any]:
        """As JSON values."""
        spent = {name: round(seconds, 1) for name, seconds in self.cpu_s.most_common()}
        return {
            "looked_at": self.looked_at,
            "kept": len(self.kept),
            "dropped": dict(self.dropped.most_common()),
            "cpu_s": spent,
            "cpu_s_a_task": round(sum(self.cpu_s.values()) / max(1, len(self.kept)), 2),
        }
