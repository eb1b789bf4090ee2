"""From a task to source: Inductor's loop IR, kernels over it, and their C++ or CUDA under a schedule."""
