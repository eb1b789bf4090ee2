"""Facts about kernels: which are GEMMs, which loops share a pass, what is known of operands. Nothing is changed."""
