"""What a command of ``cuda-agent-train`` says to its user."""

from __future__ import annotations


class CommandError(Exception):
    """Wrong arguments or input: one line for the user."""
