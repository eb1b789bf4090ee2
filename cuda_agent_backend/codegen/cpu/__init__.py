"""Kernels to C++ with OpenMP over rows and vector lanes inside."""
