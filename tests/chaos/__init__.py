"""Rounds of chaos: a few processes on one cache, and what kills, interrupts, fills, locks and misleads them.

`plan` draws a round from a seed, `rounds` runs it and says what was wrong afterwards, `actors` are the processes in it,
`warm_fork` starts them without importing torch anew. `benchmarks/chaos.py` runs many, `test_chaos.py` a few.
"""
