"""GEMM epilogue that combines parts of the columns: gated linear units and dual GEMMs."""
