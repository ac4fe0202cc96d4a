"""The calls that the API makes, each of them about queues, flows, updates, logs or monitoring.

`facade.Calls` puts the parts together. They share a `QueueAccess`, the way to a queue's mailbox and
to the store; `views` says what they take and give, and `rendering` makes that of what the core
decided.
"""
