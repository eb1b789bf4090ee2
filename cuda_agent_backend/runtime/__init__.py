"""What runs in the user's process and in its children: loaded kernels, CUDA graphs, clocks, child processes."""
