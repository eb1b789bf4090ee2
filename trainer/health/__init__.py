"""Whether a run is well: figures of each step, alarms on them, and where they are written."""
