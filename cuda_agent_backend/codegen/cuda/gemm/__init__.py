"""GEMM and implicit-GEMM convolution on tensor cores, with a pointwise epilogue."""
