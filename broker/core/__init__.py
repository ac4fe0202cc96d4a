"""The rebalancer, pure: no clock, no I/O, no randomness, standard library only.

Start reading in `rebalancer`, which opens with the theory. `model` is what a queue is, `commands`
what can be asked of it, `records` what changes it, `transitions` the legal changes of state as
tables, `assignment` the greedy balance.
"""
