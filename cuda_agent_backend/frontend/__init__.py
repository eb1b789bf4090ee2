"""What happens to Dynamo's graph before Inductor sees it."""
