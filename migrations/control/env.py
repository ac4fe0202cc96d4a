"""Makes and migrates the control tables, see `migrations.environment`."""

from __future__ import annotations

from pathlib import Path

from migrations.environment import run

run("counterpoise", Path(__file__).with_name("sql"), ["tables", "rules", "history"])
