"""A measured world: tables of timed schedules, how they are made, and an environment that answers from them."""
