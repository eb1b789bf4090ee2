"""Candidates and their launch plans: what is declared, how it is checked, its JSON."""
