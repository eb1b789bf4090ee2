"""What the search process has to know of the process that asks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.options import Options
from cuda_agent_backend.runtime.machine import all_flags
from kernel_cache import CacheUnavailable, KernelCache


@dataclass(frozen=True)
class Setup:
    """What the parent process is like. `flags`: see `machine.all_flags`; `inductor`: its options for Inductor."""

    cache_dir: Path
    native_dir: Path
    flags: Mapping[str, Any]
    policy: PolicySpec = field(default_factory=PolicySpec)
    allow_policy_cpp: bool = False
    inductor: Mapping[str, Any] | None = None
    device_lock: Path | None = None
    memory: bool = True

    @staticmethod
    def of(options: Options) -> Setup:
        """This process, for one compilation."""
        lock = options.device_lock
        return Setup(
            options.cache_dir.absolute(),
            options.native_dir.absolute(),
            all_flags(),
            options.policy_spec,
            options.allow_policy_cpp,
            options.plain_inductor,
            lock and lock.absolute(),
            options.memory,
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for the "setup" of a request."""
        return {
            "cache_dir": str(self.cache_dir),
            "native_dir": str(self.native_dir),
            "flags": self.flags,
            "policy": self.policy.to_json(),
            "allow_policy_cpp": self.allow_policy_cpp,
            "memory": self.memory,
            "inductor": self.inductor,
            "device_lock": self.device_lock and str(self.device_lock),
        }

    def open_cache(self) -> KernelCache:
        """Its kernel cache. Raises `RuntimeError` where that is not available."""
        cache = KernelCache.open(self.cache_dir)
        if isinstance(cache, CacheUnavailable):
            raise RuntimeError(str(cache))
        return cache

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Setup:
        """From the "setup" of a request."""
        names = ("cache_dir", "native_dir", "device_lock")
        paths = {name: Path(value[name]) for name in names if value.get(name)}
        policy = PolicySpec.from_json(value.get("policy", "search"))
        return Setup(**{**value, **paths, "policy": policy})
