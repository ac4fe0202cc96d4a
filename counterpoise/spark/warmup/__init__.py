"""Warm-up: restoring the state of a partition before it is granted. Theory: docs, *Warm-up*.

`floor` and `history` are rules without I/O, for the source's replay of history; `snapshots`,
`state` and `handler` keep the state of `foreachBatch` in the driver; `processor` helps users of
`transformWithState`.
"""
