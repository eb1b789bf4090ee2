"""SKILL.md: what a policy is told about its work, prose of ours around parts that are made from the code."""

from __future__ import annotations

from cuda_agent_backend.agent.skill.example import example_files, example_plan, example_task
from cuda_agent_backend.agent.skill.text import skill

__all__ = ["example_files", "example_plan", "example_task", "skill"]
