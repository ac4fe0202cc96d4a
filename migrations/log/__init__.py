"""Alembic migrations of the built-in log's schema `counterpoise_log`.

The log is separate from the control tables: its own schema, its own version table in it, possibly
another database.
"""
