"""The graph of a dynamic queue, and the records of what happens to it."""
