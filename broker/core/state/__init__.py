"""The state of a queue, its tables of transitions, and the records that change it."""
