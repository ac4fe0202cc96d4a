"""A virtual world in one process: time passes only when no task can run.

All tests that need such a world share its parts: the event `loop`; a `process` that can freeze and
die and has its own clock; its `alarms`; the `store` with faults on the way to it; and the `log`.
The tests of the broker put a few replicas into it and say what happens (`tests/broker/shell.py`).
The simulation draws at random what happens (`tests/simulation`).
"""
