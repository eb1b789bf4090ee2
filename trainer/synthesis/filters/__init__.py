"""Decisions on facts: which tasks stay."""
