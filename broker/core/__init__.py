"""The rebalancer, pure: no clock, no I/O, no randomness, standard library only.

`rebalancer` opens with the theory and dispatches each command (`commands`) to `decisions`,
`reports` or `cuts`. These start the `loop`; `assignment` says what to grant and what to hand off.
Decisions are `records`. `replay` alone applies records to a `queue`, along the legal changes of
state in `transitions`, and through `placement` wherever the balance counts. A queue consists of
what is in `model`, and, if it has them, of the `barriers` of an ordered resize and the `graph` of a
dynamic queue. `structures` are collections that know nothing of queues.
"""
