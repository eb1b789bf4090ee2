"""The tools of an episode: what a policy may do about one task.

There are three groups: `kernels`, `files` and `shell`. `toolbox` binds them together. Every answer is a JSON object
with ``ok``. What went wrong comes back as text that the policy can act on, never as an exception.
"""
