"""The IR of kernels: bodies in SSA form, loops, rows, schedules, and how they are printed."""
