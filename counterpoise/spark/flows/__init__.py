"""The flows of one query: bound together, and seen as one."""
