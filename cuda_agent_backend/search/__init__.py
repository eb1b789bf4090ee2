"""The search for kernels: its process, its client, the budget, promotion into the cache."""
