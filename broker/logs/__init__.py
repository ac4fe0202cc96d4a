"""What the service does to the logs of its queues: make, resize, trim, discard, drop, look up.

The service decides and commits first, and the log follows: it is told the partition count after a
resize, and what was discarded. Every call is idempotent and the regular upkeep repeats it, so a
crash in between costs nothing but time. Until the log knows a new count, publishers go on under the
old one; the end of a retiring partition is final only when the log refuses that count
(`counterpoise.logs`).

Every log that the service administers has one *owner*, the queue it was made for: its partition
count is the log's, and with it the log is dropped. Other queues may read the log too; they follow
the owner's count, and what they have not processed is not trimmed. `builtin:flights` belongs to the
queue `flights`, a log in Redis to the first queue that names it. A topic in Kafka has no owner
here: all its queues follow the topic's count. Of other kinds of logs the service knows only the
name.

`ports` has the two interfaces: `Logs`, which the calls use, and `LogKind`, which each kind of log
implements with the same verbs. `by_kind` is the one implementation of `Logs`: it looks up the kind
in a table and decides what an error means for the caller. `builtin` and `external` are the kinds.
"""
