"""Ways in beside the backend: capture, warm, explain; and how their results are shown."""
