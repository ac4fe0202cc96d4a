"""The control tables of the first release. No earlier ones have to be migrated."""

from __future__ import annotations

revision = "control_0001"
down_revision = None
branch_labels = None
depends_on = None
