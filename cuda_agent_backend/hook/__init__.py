"""The pass that Inductor runs on every post-grad graph: a walk of steps, each taking what the one before gives."""
