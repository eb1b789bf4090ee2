"""Loops over time that tracing unrolled, rolled up again into one kernel."""
