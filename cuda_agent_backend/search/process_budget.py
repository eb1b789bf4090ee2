"""What all graphs of a process may cost together."""

from __future__ import annotations

import threading


def share_of_process(budget_s: float, left_s: float) -> float:
    """Seconds for one graph: its budget, or half of what is left where that is less, for nobody knows how many graphs
    are still to come."""
    return min(budget_s, max(left_s, 0.0) / 2)


class ProcessBudget:
    """Counts what graphs have cost. Safe among threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.spent_s = 0.0

    def grant(self, budget_s: float, total_s: float) -> float:
        """Seconds for the next graph. total_s: for all graphs of the process, those before it included."""
        return share_of_process(budget_s, total_s - self.spent_s)

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self.spent_s = 0.0

    def spend(self, seconds: float) -> None:
        """A graph has cost so much."""
        with self._lock:
            self.spent_s += seconds


PROCESS = ProcessBudget()
"""That of this process."""
