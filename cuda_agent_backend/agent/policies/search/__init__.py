"""The search policy: proposals of schedules, ordered by a Gaussian process."""
