"""Alembic migrations of the control tables; they import no application code."""
