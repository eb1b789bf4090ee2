"""Sorts of rows, and selections of their largest or smallest elements."""
