"""How much of a device a task takes, phase by phase, and leases on it among processes."""
