"""A virtual world in one process: time passes only when no task can run.

Event loop, processes, alarms and the twin of the store are those of `broker.testing`. Here is what
only tests need: the `store` with faults on the way to it, and the `log`.
The tests of the broker put a few replicas into it and say what happens (`tests/broker/shell.py`).
The simulation draws at random what happens (`tests/simulation`).
"""
