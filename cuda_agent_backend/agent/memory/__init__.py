"""What was found for tasks like this one."""
