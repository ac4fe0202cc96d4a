"""State that is restored before a partition is granted. Theory: docs, *Warm-up*.

Start reading at `states`: the states of the partitions, and how one is restored. `handler` keeps
them for `foreachBatch` in the driver, with a thread that follows the flow, and `snapshots` is the
place where they are published. `processor` helps users of `transformWithState`. The source's side
is outside: `source.history` and the floor of `options` are rules for the replay of history,
`source.warmup_tracker` reports what is restored.
"""
