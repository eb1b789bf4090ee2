"""SKILL.md: what a policy is told about its work. `text` joins our prose and what is made from the code."""
