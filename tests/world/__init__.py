"""A world in one process, in which time passes only when nobody can run.

It has what a service runs on, each thing once for all tests that play it: the event `loop`,
`process`es that freeze and die and have clocks of their own, their `alarms`, the `store` with what
can go wrong on the way to it, and the `log`. The tests of the broker's shell put a few replicas
into it and say what happens (`tests/broker/shell.py`); the simulation draws it
(`tests/simulation`).
"""
