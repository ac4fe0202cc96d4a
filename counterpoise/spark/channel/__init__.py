"""Between a query's own process and its driver: who is there, and documents in files that one
writes and the other reads.

Start reading at `channel`: how a document is handed over. `status` and `source_channel` have what
the source's process says, `running_batch` what a micro-batch tells the code that writes it, and
`running_driver` finds out whether the driver still runs.
"""
