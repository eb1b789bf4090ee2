"""GEMM epilogue that does whole rows in the tile: softmax and norms."""
