"""Writing rows into a queue: `format("counterpoise")` of a stream or a batch, and `QueueSink`.

Start reading at `numbering`: under which publisher and sequence a row is appended, so that a
repeated row is known. Then `appender`, the work of a task. The theory is docs/writing.md.
"""
