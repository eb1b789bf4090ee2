"""Scans along a row, such as cumulative sums."""
