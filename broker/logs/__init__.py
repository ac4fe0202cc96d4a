"""The service's work on the logs of its queues: make, resize, trim, discard, drop, look up.

The service decides and commits first, and the log follows: the service sends it the partition count
after a resize, and the discarded partitions. Every call is idempotent and the regular upkeep
repeats it, so a crash in between only costs time. Until the log knows a new count, publishers use
the old one; the end of a retiring partition is final only when the log refuses the old count
(`counterpoise.logs`).

Every log that the service administers has one *owner*, the queue for which it was made: the log has
the owner's partition count, and is dropped together with the owner. Other queues may read the log
too; they follow the owner's count (with ordered resizes the log's, by the numbers of its resizes:
`broker.calls.cuts`), and messages that they have not processed are not trimmed.
`builtin:flights` belongs to the queue `flights`, a log in Redis to the first queue that names it. A
Kafka topic has no owner here: all its queues follow the topic's count. Of other kinds of logs the
service knows only the name.

`ports` has the two interfaces: `Logs`, which the calls use, and `LogKind`, which each kind of log
implements with the same verbs. `by_kind` implements `Logs`: it looks up the kind in a table and
translates errors for the caller. `builtin` and `external` are the kinds.
"""
