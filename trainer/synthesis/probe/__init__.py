"""Facts of a task, measured in a confined process."""
