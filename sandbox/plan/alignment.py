"""What the launcher promises a kernel about the addresses of its buffers."""

TEMPORARY_ALIGNMENT = 256
"""Bytes, of every temporary."""
INPUT_ALIGNMENT = {"cpu": 1, "cuda": 16}
"""Bytes, by target. A less aligned input is copied before the launch. Cpu kernels may assume no more than the dtype's
own."""
