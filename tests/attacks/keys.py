"""What the attacks with keys share.

They wait until a key has ended, for as long as that takes; `test_ends_of_keys` shows that it takes
at most 5 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg

from broker import access_keys
from broker.core.access import key_id_of
from tests.api.access import Guarded

MOST_COMMENTS = 3


def revoke(secured: Guarded, key: str) -> None:
    """Revoke a key."""
    id = key_id_of(key)
    assert id is not None
    access_keys.revoke(secured.url, id)


def let_end(secured: Guarded, key: str) -> None:
    """The end of a key, some time ahead until now, has come."""
    with psycopg.connect(secured.url) as connection:
        changed = connection.execute(
            "UPDATE counterpoise.keys SET ends_at = extract(epoch FROM clock_timestamp())"
            " WHERE id = %s AND ends_at > extract(epoch FROM clock_timestamp())",
            [key_id_of(key)],
        )
        assert changed.rowcount == 1


def rest_of(lines: Iterator[str]) -> Sequence[str]:
    """The lines of an event stream up to its end, but for empty ones and comments.

    Comments say that it goes on. They come far more rarely than the service looks for ended keys,
    so after several of them it will not end.
    """
    rest: list[str] = []
    comments = 0
    for line in lines:
        if line.startswith(":"):
            comments += 1
            assert comments < MOST_COMMENTS, "the stream goes on"
        elif line:
            rest.append(line)
    return rest
