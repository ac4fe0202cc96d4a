"""One replica of the service: a mailbox for each queue, alarms, the sweep, and notifications.

`replica` has the queues that are in memory. `coordinator` is the mailbox of one queue, and `turns`
makes one transaction of the commands that waited in it.
"""
