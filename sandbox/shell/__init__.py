"""The shell of an agent's workspace."""
