"""Kernels over rows: reductions, norms, softmax, scans, with all that is fused to them."""
