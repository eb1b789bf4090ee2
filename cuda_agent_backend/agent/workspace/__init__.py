"""The folder in which a policy works on one task."""
