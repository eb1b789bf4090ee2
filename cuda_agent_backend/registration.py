"""How torch registers the backend: as often as threads ask for it."""

from __future__ import annotations

import sys
from typing import Any

from cuda_agent_backend import log


class _Registered(dict[str, Any]):
    """Torch's compilers by name, in which one may be registered again under the name that it has."""

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        return found and not (name in NAMES and self._registers_again(str(name)))

    def _registers_again(self, name: str) -> bool:
        caller = sys._getframe(2)
        registers = caller.f_code.co_name == "register_backend"
        return registers and caller.f_locals.get("compiler_fn") is self[name]


NAMES = {"cuda_agent"}
"""Of the compilers that may be registered again."""


def allow_registering_again() -> None:
    """Let threads look the backend up for the first time together.

    Torch loads an entry point where it finds no compiler of that name, and then registers it; a second thread that
    has not found it either is told that the name is taken. Nothing that is called between can prevent that, so
    the second registration has to be none.
    """
    try:
        from torch._dynamo.backends import registry

        known = registry._COMPILER_FNS
        if type(known) is dict:
            registry._COMPILER_FNS = made = _Registered(known)
            made.update(known)  # what another thread has registered meanwhile
    except (ImportError, AttributeError) as error:
        log.logger("all").debug("threads have to meet the backend one by one: %s", error)
