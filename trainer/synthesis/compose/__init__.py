"""From a seed number to the code of a task."""
