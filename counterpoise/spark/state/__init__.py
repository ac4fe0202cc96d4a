"""State that is restored before a partition is granted. Theory: docs, *Warm-up*.

`handler` keeps the state of `foreachBatch` in the driver, with a thread that follows the flow:
`states` are the states of the partitions and how one is restored, `snapshots` the place where they
are published. `processor` helps users of `transformWithState`. The source's side is outside:
`history` and the floor of `options` are rules for the replay of history, `warmup_tracker` reports
what is restored.
"""
