"""The built-in log takes only rows that every consumer can show.

Each rule is of one row, so it is a constraint: whoever appends is held to it, however he does it.
Rows that are there already stay; reading shows what it cannot take otherwise
(`counterpoise.logs.rows`).
"""

from __future__ import annotations

from alembic import op

revision = "log_0002"
down_revision = "log_0001"
branch_labels = None
depends_on = None
serves_from = "log_0001"

# The times that a datetime of any time zone can show. Headers are texts. A key and headers may be
# as large as a message; JSON needs more than the texts in it, but hardly twice as much.
CONSTRAINTS = {
    "messages_time_is_shown": """
        published_at >= '0001-01-02T00:00:00Z' AND published_at < '9999-12-31T00:00:00Z'
    """,
    "messages_headers_are_texts": """
        NOT jsonb_path_exists(headers, '$.* ? (@.type() != "string")')
    """,
    "messages_key_size": "octet_length(key) <= 16777216",
    "messages_headers_size": "octet_length(headers::text) <= 33554432",
}


def upgrade() -> None:
    for name, condition in CONSTRAINTS.items():
        op.execute(
            f"ALTER TABLE counterpoise_log.messages ADD CONSTRAINT {name}"
            f" CHECK ({condition}) NOT VALID"
        )


def downgrade() -> None:
    for name in CONSTRAINTS:
        op.execute(f"ALTER TABLE counterpoise_log.messages DROP CONSTRAINT {name}")
