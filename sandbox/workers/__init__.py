"""Worker processes, in which candidates run, and what judge and worker say to each other."""
