"""What a replica needs besides its code, in memory: the database, and time that is moved.

`database` is the twin of the Postgres database: the same promises, without a server or waiting.
`store` is one replica's connection to it. `tests/broker/store` tests both stores against the port
`broker.store.ports`, and `test_twins` makes the same calls to both.

`loop` is an event loop in which time passes only when no task can run; `process` is a process on it
that can freeze and die, with its alarms. `logs` is a log in memory, and `service` the whole service
over them.

`counterpoise.testing` runs the service on them, and so do the tests and the simulation.
"""
