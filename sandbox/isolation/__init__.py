"""What confines the processes that handle a candidate."""
