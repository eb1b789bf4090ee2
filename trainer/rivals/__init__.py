"""Ways to choose among a task's schedules, all by one protocol, so that they can be compared on the same tables."""
