"""One replica of the service: a mailbox for each queue, alarms, the sweep, and notifications.

`replica` has the queues that are in memory. `coordinator` is the mailbox of one queue, and
`transaction` makes one transaction of the commands that waited in it. `notifier` wakes those who
wait for a view, `renewals` has the leases, and `store_calls` is how both reach the store.
"""
