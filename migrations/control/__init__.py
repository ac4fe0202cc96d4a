"""Alembic migrations of the control tables, schema `counterpoise`.

Queues, flows, partitions and records of changes. The version table is in the schema itself.
"""
