"""What an operator is to the partition, and groups of operators that are recognised as one."""
