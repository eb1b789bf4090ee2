"""GEMM epilogue that pools a convolution's results in the tile."""
