"""What a shell offers for names after TAB: those that the service has at that moment.

Somebody is typing. So a service that is away, is slow or refuses the key offers no name, and
nothing is said about it.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from counterpoise.client import Client

ANSWER_SECONDS = 1.0
MOST_NAMES = 1000


def queues(context: click.Context, incomplete: str) -> list[str]:
    """The queues whose names begin so."""
    return _asked(
        context,
        incomplete,
        lambda client: [one.name for one in client.queues(max_items=MOST_NAMES)],
    )


def consumers(context: click.Context, incomplete: str) -> list[str]:
    """The consumers of the queue that stands before; of several with one name, their flows."""

    def found(client: Client) -> list[str]:
        flows = client.flows(context.params["queue"], max_items=MOST_NAMES)
        clients = [one.client_name for one in flows]
        return [
            one.client_name if clients.count(one.client_name) == 1 else one.flow_id for one in flows
        ]

    return _asked(context, incomplete, found)


def _asked(
    context: click.Context, incomplete: str, names: Callable[[Client], list[str]]
) -> list[str]:
    try:
        with Client(context.params.get("url"), timeout_seconds=ANSWER_SECONDS) as client:
            found = names(client)
    except Exception:  # whatever it is, a line about it would tear what is typed
        return []
    # A control character would reach the terminal.
    return [one for one in found if one.startswith(incomplete) and one.isprintable()]
