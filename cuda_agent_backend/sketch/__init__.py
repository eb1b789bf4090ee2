"""Kernel sketches: task -> loop nests -> rows -> a schedule -> C++ or CUDA source."""
