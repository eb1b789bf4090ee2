"""Kernel to kernel: what is done with a row kernel before it is written, so that its text is faster."""
