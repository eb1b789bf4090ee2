"""Rows whose results become one number: a row kernel, and a small one that joins (two-stage reduction)."""
