"""Compilation of candidates, and what can be read off a binary."""
