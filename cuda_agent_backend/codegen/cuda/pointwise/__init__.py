"""Pointwise kernels: every thread makes a few vectors of elements."""
