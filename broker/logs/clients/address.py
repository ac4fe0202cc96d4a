"""The address of the built-in log as clients get it: the service's own, less what is not theirs.

The service's URL may hold more than a place. Postgres takes a user and a password from the query
string too, and the paths of keys and certificates are those of the service's machine. So a client
gets only the settings that are known to be harmless (_FOR_CLIENTS), never the rest.

Encryption follows the service's: a service that speaks HTTPS tells clients beyond this machine to
insist on it (`sslmode=require`) unless its URL says otherwise.
"""

from __future__ import annotations

from ipaddress import ip_address

from sqlalchemy import URL

_FOR_CLIENTS = frozenset(
    {
        "host",
        "port",
        "sslmode",
        "sslnegotiation",
        "ssl_min_protocol_version",
        "channel_binding",
        "target_session_attrs",
        "load_balance_hosts",
        "connect_timeout",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
    }
)


def client_url(address: URL, *, tls: bool) -> URL:
    """`address` without user, password and settings of the service's own.

    `tls`: the service speaks HTTPS; then connections beyond this machine have to be encrypted.
    """
    query = {name: value for name, value in address.query.items() if name in _FOR_CLIENTS}
    if tls and "sslmode" not in query and not _is_this_machine(address):
        query["sslmode"] = "require"
    # Not URL.set: an empty password or user would leave the old one.
    return URL.create(
        "postgresql",
        host=address.host,
        port=address.port,
        database=address.database,
        query=query,
    )


def _is_this_machine(address: URL) -> bool:
    """Whether every host of the address is this machine, or a socket on it."""
    named = address.query.get("host", ())
    hosts = [address.host or "", *([named] if isinstance(named, str) else named)]
    return all(_is_local(one) for host in hosts for one in host.split(",") if one)


def _is_local(host: str) -> bool:
    name = host.strip("[]").lower()
    if name == "localhost" or name.startswith(("/", "@")):
        return True
    try:
        return ip_address(name.rpartition(":")[0] if name.count(":") == 1 else name).is_loopback
    except ValueError:
        return False
