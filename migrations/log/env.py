"""Makes and migrates the tables of the built-in log, see `migrations.environment`."""

from __future__ import annotations

from pathlib import Path

from migrations.environment import run

run(
    "counterpoise_log",
    Path(__file__).with_name("sql"),
    ["tables", "locks", "watches", "append", "ranges", "resizes", "trims", "clients", "access"],
)
