"""Warm-up: restoring the state of a partition before it is granted. Theory: docs, *Warm-up*.

`floor` and `history` are rules without I/O, for the source's replay of history. `handler` keeps the
state of `foreachBatch` in the driver: `state` is that of a partition, `states` all of them,
`tending` the thread that follows the flow, `snapshots` where they are published. `processor` helps
users of `transformWithState`.
"""
