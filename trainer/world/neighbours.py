"""What a search on a table's task would be told of like tasks: winners of other tables, found as in the kernel cache.

A table's winner is the record that a search of its task would have left. Those of the task's own family are never told:
a policy learns from families what it then meets in others, and would learn to wait for the answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from functools import cached_property

from cuda_agent_backend.agent.memory.recall import Entry, Neighbour, entry_of, nearest
from cuda_agent_backend.agent.protocol import ToolCall
from cuda_agent_backend.search.outcome import SearchResult
from cuda_agent_backend.search.promotion import record_of
from kernel_cache import KernelKey, Record
from sandbox.timing.decision import THRESHOLD
from trainer.world.replay_tools import ReplayTools
from trainer.world.rows import Table

MADE_BY = "table"
"""What evidence names as toolchain and policy."""


class TableMemory:
    """The winners of tables by nearness. Threads may share one; nothing is looked at before it is asked for."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self._found: dict[str, list[Neighbour]] = {}
        self._lock = threading.Lock()

    def neighbours(self, table: Table) -> Sequence[Neighbour]:
        """What is told of the winners of other families, for a table of these or any other one."""
        with self._lock:
            if table.id not in self._found:
                records = self._records
                others = [entry for family, entry in self._entries if family != table.family]
                self._found[table.id] = nearest(table.parsed, key_of(table), others, records.get)
            return self._found[table.id]

    @cached_property
    def _won(self) -> list[tuple[str, Record]]:
        """The family and the record of each table with a winner; of tables of one task, of the fastest."""
        found = {}
        for table in sorted(self._tables, key=lambda table: (table.best, table.id)):
            record = winner(table)
            if record is not None:
                found[record.key.digest] = (table.family, record)
        return list(found.values())

    @cached_property
    def _records(self) -> dict[str, Record]:
        return {record.key.digest: record for _, record in self._won}

    @cached_property
    def _entries(self) -> list[tuple[str, Entry]]:
        entries = [(family, entry_of(r.key.digest, "", r)) for family, r in self._won]
        return [(family, entry) for family, entry in entries if entry is not None]


def key_of(table: Table) -> KernelKey:
    """Under which a kernel for the table's task would be kept; all of torch's flags are in its precision."""
    return KernelKey.of(table.parsed.digest, table.target, table.arch, table.flags, False)


def winner(table: Table) -> Record | None:
    """The fastest schedule of a table that the judge would promote, as the cache would have it; None without one."""
    tools = ReplayTools.of(table)
    fast = [row for row in table.rows if (row.speed or 0.0) > THRESHOLD]
    for row in sorted(fast, key=lambda row: -(row.speed or 0.0)):
        tools.run([ToolCall.of("1", "sketch", schedule=json.loads(row.schedules[0]))])
        tools.run([ToolCall.of("2", "submit", candidate=row.candidate)])
        if (won := tools.best()) is not None:
            result = SearchResult(*won, b"", MADE_BY, MADE_BY)
            return record_of(key_of(table), table.parsed, result, 0.0)
    return None
