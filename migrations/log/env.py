"""Alembic's entry to the built-in log's migrations (see migrations.environment)."""

from __future__ import annotations

from migrations.environment import run

run("counterpoise_log")
