"""Runs the migrations of the control tables, see `migrations.environment`."""

from __future__ import annotations

from migrations.environment import run

run("counterpoise")
