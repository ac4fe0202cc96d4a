"""Warm-up: restoring the state of a partition before it is granted. Theory: docs, *Warm-up*.

`plan.floor` and `plan.history` are rules without I/O, for the source's replay of history. `handler`
keeps the state of `foreachBatch` in the driver: `state` is the state of one partition, `states` all
of them, `tending` the thread that follows the flow, `snapshots` the place where they are published.
`processor` helps users of `transformWithState`.
"""
