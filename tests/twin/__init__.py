"""The Postgres store's twin in memory: the same promises, without a server or waiting.

The tests' world and the simulation run on it. `tests/broker/store` tests both against the port
`broker.store.ports`, and `test_twins` makes the same calls to both.
"""
