"""Kernels to CUDA C++: one folder for each kernel family."""
