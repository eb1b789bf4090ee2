"""The command ``cuda-agent``."""
