"""The compiler backend `cuda_agent`: Inductor's code, with verified faster kernels where there are any.

Importing this package does nothing. `backend.cuda_agent` is the entry point, `tools.warm.warm` searches ahead of time,
`tools.explain.explain` says what would happen to a model and why.
"""

from cuda_agent_backend.weights import weights_changed

__all__ = ["weights_changed"]
