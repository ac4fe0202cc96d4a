"""The calls of the API, in five parts: queues, flows, updates, logs and monitoring.

`facade.Calls` assembles the parts. They share a `QueueAccess`, which gives access to a queue's
mailbox and to the store. `views` defines arguments and results, and `rendering` makes them from the
core's model.
"""
