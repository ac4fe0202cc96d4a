"""Why a queue was rebalanced, in plain words: `etl-3 bound; etl-1 was silent for its lease`.

The names are those of clients, in the order in which things happened. A client that left and came
back is said to have come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.calls.past.views import CauseView

# Clients that are named; the others are counted.
MOST_NAMED = 3

_LEFT = {
    "unbound": "left",
    "lease_expired": "did not renew the lease",
    "driver_lost": "lost the Spark driver, which was killed",
    "key_ended": "left, because the key ended",
    "restored": "left, because the service was restored from a backup",
}
# Where nothing more is known: the changes are not stored any more.
_TRIGGERS = {
    "bind": "a consumer bound",
    "unbind": "a consumer left",
    "lease_expired": "a consumer did not renew the lease",
    "driver_lost": "a consumer lost its Spark driver, which was killed",
    "resize": "the queue was resized",
    "access_type": "the access type was changed",
    "drain": "a consumer was drained",
    "admin": "an administrator asked for a rebalance",
    "replaced": "a consumer came back",
    "lineage": "partitions were split, merged or finished",
}


def why(trigger: str, causes: Sequence[CauseView]) -> str:
    """One line. `trigger` as in the contract, `causes` in the order in which they happened."""
    happened: dict[str, list[str]] = {}
    for said, client in _events(causes):
        clients = happened.setdefault(said, [])
        if client not in clients:
            clients.append(client)
    parts = [_sentence(said, clients) for said, clients in happened.items()]
    if trigger == "admin" or not parts:
        parts.insert(0, _TRIGGERS.get(trigger, trigger))
    return "; ".join(parts)


def _events(causes: Sequence[CauseView]) -> Iterable[tuple[str, str]]:
    """What was done, and by which client; no client: by nobody."""
    replaced = {
        cause.client_name for cause in causes if cause.type == "left" and cause.reason == "replaced"
    }
    for cause in causes:
        client = cause.client_name or _short(cause.flow_id)
        match cause.type:
            case "bound":
                yield ("started again" if cause.client_name in replaced else "bound"), client
            case "left" if cause.reason != "replaced":
                yield _LEFT.get(cause.reason or "", f"left ({cause.reason})"), client
            case "draining":
                yield "began to drain", client
            case "changed":
                for name, value in (cause.settings or {}).items():
                    yield _changed(name, value), ""


def _changed(name: str, value: object) -> str:
    if name == "partition_count":
        return f"resized to {value} partition{'' if value == 1 else 's'}"
    return f"{name} was set to {value}"


def _sentence(said: str, clients: Sequence[str]) -> str:
    if clients == [""]:
        return said
    named = list(clients[:MOST_NAMED])
    others = len(clients) - len(named)
    if others:
        named.append(f"{others} other{'' if others == 1 else 's'}")
    listed = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    return f"{listed} {said}"


def _short(flow_id: str | None) -> str:
    """A flow whose client is not known any more."""
    return f"flow {(flow_id or '?')[:8]}"
