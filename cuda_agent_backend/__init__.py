"""The compiler backend `cuda_agent`: Inductor's code, with verified faster kernels where there are any.

Importing this package does nothing. `backend.cuda_agent` is the entry point, `warm.warm` searches ahead of time,
`explain.explain` says what would happen to a model and why.
"""
