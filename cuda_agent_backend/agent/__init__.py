"""The agent: a policy that works on one task with tools until a kernel wins or nothing is left to win."""
