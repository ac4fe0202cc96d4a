"""The calls of the API, by subject: queues, flows, updates, logs, lineage, keys, monitoring, ...

`broker.service.Calls` assembles the subjects. They share a `QueueAccess`, which gives access to a
queue's mailbox and to the store. `views` defines arguments and results, and `rendering` makes them
from the core's model.
"""
