"""Trajectories as data: events, their JSON lines, files and folders."""
