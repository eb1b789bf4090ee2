"""Kernels of one cache, as this process can use them: looked up, loaded and bound to their operator keys."""

from __future__ import annotations

import hashlib
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

from cuda_agent_backend import log
from cuda_agent_backend.json_values import write_json
from cuda_agent_backend.runtime.machine import why_doubted, why_unfit
from cuda_agent_backend.settings import Settings, SettingsError
from kernel_cache import (
    CacheUnavailable,
    Corrupt,
    KernelCache,
    KernelKey,
    Miss,
    NegativeRecord,
    Record,
)
from sandbox import launcher
from sandbox.compile.cuda import depends
from sandbox.failures import passing_words
from sandbox.plan.plan import Plan, PlanError


@dataclass(frozen=True)
class Hit:
    """A kernel that is loaded and bound to its key's operator number."""

    record: Record


@dataclass(frozen=True)
class NoKernel:
    """Why there is no kernel to use. `searchable`: whether a search now could change that. `passing`: the kernel is
    there, and cannot be used just now."""

    reason: str
    searchable: bool = False
    negative: bool = False
    passing: bool = False


OUTDATED = "cuda_agent-outdated"
"""A file in torch's folder of compiled code: what is kept there is to be found no more."""
MORE = 4.0
"""A search that was cut short is done again with a graph's budget larger by this factor."""


def more_would_do(record: NegativeRecord, budget_s: float) -> bool:
    """Whether a failed search is worth another with so many seconds for its graph, because it ended for want of them.

    Seconds for the graph are compared, not the kernel's share of them: the same wish must not search again every time.
    """
    had = record.budget.get("graph_seconds")
    return isinstance(had, int | float) and budget_s >= MORE * had > 0


class Kernels:
    """An open kernel cache and what was loaded from it. Safe among threads.

    native_dir: where the native operators are built at the first kernel; without it the Python ones serve.
    """

    def __init__(self, cache: KernelCache, native_dir: Path | None = None) -> None:
        self.cache = cache
        self.native_dir = native_dir

    def find(
        self,
        key: KernelKey,
        min_speedup: float = 0.0,
        policy: str = "",
        budget_s: float = 0.0,
        consent: bool = True,
    ) -> Hit | NoKernel:
        """The kernel for a key, ready to run, or why not.

        policy: what would search: what another failed at, it may. budget_s: seconds that it would have for the graph.
        consent: to C++ that a policy wrote itself.
        """
        record = self.cache.get(key)
        if isinstance(record, Miss):
            return NoKernel(record.reason, searchable=True)
        if isinstance(record, NegativeRecord):
            again = policy not in ("", record.policy) or more_would_do(record, budget_s)
            return NoKernel(record.reason, searchable=again, negative=True)
        if isinstance(record, Corrupt | CacheUnavailable):
            log.once("cache", f"left to Inductor: {record}")
            return NoKernel(str(record), passing=isinstance(record, CacheUnavailable))
        if record.language == "c++" and record.origin != "sketch" and not consent:
            return NoKernel(
                "a policy wrote its C++: cuda_agent.allow_policy_cpp consents to run it"
            )
        doubt = why_doubted(record)
        if doubt:
            return NoKernel(f"to be verified again: {doubt}", searchable=True)
        low = lower_bound(record)
        if low is not None and low < min_speedup:
            return NoKernel(f"its speed-up of at least {low:.2f} is below {min_speedup:.2f}")
        failed = self.load(record)
        return NoKernel(failed, passing=bool(passing_words(failed))) if failed else Hit(record)

    def load(self, record: Record) -> str | None:
        """Bind a record's kernel in this process; what went wrong, or None."""
        if launcher.is_bound(record.key.op_key):
            return None
        path = self.cache.binary_path(record)
        if not isinstance(path, Path):
            log.once("cache", f"left to Inductor: {path}")
            return str(path)
        try:
            plan = Plan.from_json(record.plan)
        except PlanError as error:
            return f"its plan is malformed: {error}"
        if record.origin != "sketch" and (why := depends(plan)):
            return why
        program = launcher.load_program(path, plan)
        if isinstance(program, launcher.LoadFailed):
            log.once("cache", f"left to Inductor: a kernel does not load: {program.reason}")
            return program.reason
        launcher.bind(record.key.op_key, program)
        self._make_native()
        return None

    def _make_native(self) -> None:
        folder, self.native_dir = self.native_dir, None
        native = launcher.ensure_native(folder) if folder else None
        if isinstance(native, launcher.Missing):
            log.once(
                "splice", f"kernels are called through Python: {native.reason}; {native.remedy}"
            )
            if passing_words(f"{native.reason}\n{native.log}"):
                self.native_dir = folder  # the next kernel tries again

    def resolve(self, op_key: int) -> bool:
        """Load what code from torch's own caches, or of an artifact, names; False where that cannot be."""
        record = self.cache.get_by_op_key(op_key)
        why = str(record) if not isinstance(record, Record) else why_unfit(record)
        if isinstance(record, Record) and not why:
            return self.load(record) is None
        log.once("cache", f"kernel {op_key} is not to be had from {self.cache.path}: {why}")
        return False

    def fingerprint(self) -> str:
        """Changes whenever another kernel would be found, or one that was found no longer can be.

        Damaged files count: code that torch cached must not name a kernel that will not load.
        """
        return f"{self.cache.fingerprint()}:{self._damage()}{_outdated()}"

    def outdate(self) -> None:
        """Keep code that was compiled until now from other processes, which with it would never search.

        Where the kernel cache cannot be written, as in a home over its quota, torch's folder says so: what cannot be
        written there either, torch does not keep.
        """
        found = self.cache.outdate()
        if not isinstance(found, CacheUnavailable):
            return
        try:
            write_json(_torchs_folder() / OUTDATED, {"last": uuid.uuid4().hex})
        except OSError as error:
            log.once("cache", f"not counted as a change: {found}; {error}")

    def _damage(self) -> str:
        if (known := _damage_known.get(fingerprint := self.cache.fingerprint())) is not None:
            return known
        found = self.cache.list()
        if isinstance(found, CacheUnavailable):
            return "unavailable"
        broken = sorted(entry.name for entry in found if isinstance(entry, Corrupt))
        digest = hashlib.sha256("\n".join(broken).encode()).hexdigest()[:16] if broken else ""
        _damage_known[fingerprint] = digest
        return digest


_damage_known: dict[str, str] = {}


def _torchs_folder() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def _outdated() -> str:
    """What was last noted in torch's folder, "" for nothing; something new each time where it cannot be read."""
    try:
        return ":" + (_torchs_folder() / OUTDATED).read_text()
    except FileNotFoundError:
        return ""
    except OSError:
        return f":unreadable-{uuid.uuid4().hex}"


def lower_bound(record: Record) -> float | None:
    """The lower 95 % bound of a record's speed-up over the faster baseline, where its evidence has it."""
    speed = record.evidence.get("speedup")
    low = speed.get("low") if isinstance(speed, dict) else None
    return float(low) if isinstance(low, int | float) else None


_lock = threading.Lock()
_open: dict[Path, Kernels] = {}


def open_kernels(folder: Path, native_dir: Path | None = None) -> Kernels | CacheUnavailable:
    """The kernels of a cache folder, opened once per process; it becomes the first to be asked for unknown kernels.

    native_dir: see `Kernels`.
    """
    with _lock:
        known = _open.pop(folder, None)
        if known is None:
            cache = KernelCache.open(folder)
            if isinstance(cache, CacheUnavailable):
                return cache
            known = Kernels(cache, native_dir)
        _open[folder] = known
        launcher.define_ops()
        launcher.set_resolver(resolve)
        return known


def resolve(op_key: int) -> bool:
    """Load the kernel of a key from the caches that are open, or else from the one that the environment names."""
    if any(kernels.resolve(op_key) for kernels in reversed(list(_open.values()))):
        return True
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        log.once("all", f"{error}; kernels of saved code are not to be had")
        return False
    if settings.cache_dir in _open:
        return False
    log.configure(settings.logs)
    found = open_kernels(settings.cache_dir, settings.native_dir)
    if isinstance(found, CacheUnavailable):
        log.once("cache", f"kernel cache unavailable: {found}")
        return False
    return found.resolve(op_key)
