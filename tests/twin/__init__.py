"""The twin of the Postgres store in memory: the same promises, without a server or any waiting.

The worlds of the tests and the simulation run on it. `tests/broker/store` holds both to the port
`broker.store.ports`, and `test_twins` plays the same calls on both.
"""
