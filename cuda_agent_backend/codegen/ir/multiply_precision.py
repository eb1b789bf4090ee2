"""How exactly kernels multiply, as the parameter `products` of their schedules counts it."""

from __future__ import annotations

EXACT = 6
"""Products of parts for one of float32 numbers, with float32's accuracy."""
