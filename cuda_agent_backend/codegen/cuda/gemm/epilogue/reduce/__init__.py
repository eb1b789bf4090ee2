"""GEMM epilogue that reduces results over rows or columns in the tile."""
