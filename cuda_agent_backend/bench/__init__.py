"""``cuda-agent bench``: folders of task files, searched and measured unattended.

A task file is a Python file with ``class Model(nn.Module)``, ``get_inputs()`` and ``get_init_inputs()``.

1. `discovery` finds the task files.
2. `runner` has each task searched and then measured. By what `sizes` says of a task before it begins, `admission` lets
   as many run together as the device has memory for. `children` starts a process for that, and `child` is what the
   process runs: `built_task` makes the model, `measurement` measures it, `floor` says what the machine would allow,
   `in_pieces` computes a large task's oracle in slices, and `positions` says which outputs hold some, both by the graph
   that `traced` gives; `memory` says how much of the device a phase held.
   `holder` is a process that holds some of it all the while, where that is asked for.
3. `results` keeps what came of each task, and `run_times` how long the runs took.
4. `figures` are pure functions from there to a summary, which `report` and `plots` show.
"""
