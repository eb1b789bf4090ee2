"""FX graphs of tasks: the operators they name, and how a task becomes a graph that torch can run."""
