"""Algebraic rewrites: from a task to tasks with the same inputs and outputs that need less work.

Pure functions on graphs. What a rule claims is not taken on trust: the judge compares every candidate with the float64
oracle of the task as it stood before.
"""
