"""Clients of the built-in log: consumers and publishers, which talk to its database themselves.

`holders` says for whom credentials are made, `credentials` makes them, `roles` ends them, `address`
is where clients connect, and `closing` takes away what Postgres gives to everybody. What a client
reaches, and why, is in migrations/log (log_0003).
"""
