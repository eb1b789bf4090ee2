"""GEMM epilogues that do more than pointwise work in the tile."""
