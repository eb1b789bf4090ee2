"""What a command of ``cuda-agent`` comes to."""

from __future__ import annotations

from typing import Any

Result = tuple[int, dict[str, Any]]
"""The exit status, and what was found, for ``--json``."""


class CliError(Exception):
    """What the user asked for cannot be done, said in one line."""
