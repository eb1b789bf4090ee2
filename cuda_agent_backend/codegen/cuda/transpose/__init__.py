"""Pointwise kernels whose operands and results run along different loops: tiles in shared memory."""
