"""Convolutions with kernels of their own, beside implicit GEMM."""
