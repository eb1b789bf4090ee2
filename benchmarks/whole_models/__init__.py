"""Whole models at sizes that people run, and their races against Inductor: what `python -m benchmarks.models` measures.

1. `subject` says what a model to be measured is; `text`, `images` and `others` make those of a GPU from configurations,
   `small` those of two CPU cores. `registry` names them all.
2. `cells` are what is measured: a model, a dtype, inference or a training step, a mode of `torch.compile`.
3. `contestant` is what one process does: build, compile, call, time a call when told to. `reference` computes what
   errors are held against. `race` starts such processes (`process`) and has them run by turns.
4. `figures` are pure functions from what they said to a result.
"""
