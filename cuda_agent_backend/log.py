"""Logging: Python's `logging` under the name `cuda_agent`, one child per topic, and lines said only once."""

from __future__ import annotations

import logging
import sys
import threading

ROOT = "cuda_agent"
_said: dict[str, object] = {}
_lock = threading.Lock()


def logger(topic: str) -> logging.Logger:
    """The logger of a topic (one of `settings.LOG_TOPICS`)."""
    return logging.getLogger(ROOT if topic == "all" else f"{ROOT}.{topic}")


def configure(topics: tuple[tuple[str, str], ...]) -> None:
    """Set the levels that `CUDA_AGENT_LOGS` asks for; without any, logging is left as the program set it up."""
    if not topics:
        return
    root = logger("all")
    with _lock:
        if not root.handlers:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
            root.addHandler(handler)
            root.propagate = False
    for topic, level in topics:
        logger(topic).setLevel(level)


def once(topic: str, message: str, level: int = logging.WARNING) -> None:
    """Log a line the first time it is said in this process: a fault that meets every graph is reported once."""
    mine = object()
    if _said.setdefault(message, mine) is mine:  # one of several threads
        logger(topic).log(level, message)


def forget() -> None:
    """Let every line be said again (`torch._dynamo.reset`)."""
    _said.clear()
