"""``cuda-agent bench``: folders of task files, searched and measured unattended.

A task file is a Python file with ``class Model(nn.Module)``, ``get_inputs()`` and ``get_init_inputs()``. `discovery`
finds them; `runner` has each one searched and then measured in child processes (`children` starts them, `child` is what
they run, `measuring`, `clocks` and `floor` are the measurement); `results` keeps what came of each; `figures` are pure
functions from there to a summary, which `report` and `plots` show.
"""
