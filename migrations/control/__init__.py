"""Alembic migrations of the control tables, schema `counterpoise`.

Queues, flows, partitions and records of changes. `script_location` is `migrations:control`; the
version table is in the schema itself.
"""
