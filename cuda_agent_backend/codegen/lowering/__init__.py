"""From a task to loop nests, through Inductor's own lowering."""
