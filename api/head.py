"""The head of a request, read once: everything that the service takes from its fields is here.

Of a field that comes several times the first counts, for all who look at it. Where that would
decide who calls, the connection refuses the request (`api.connections`).
"""

from __future__ import annotations

import functools
import ipaddress

from starlette.types import Scope

# Where the scope of a request has its head.
HEAD = "counterpoise.head"


class Head:
    """What the fields of a request's head say."""

    __slots__ = (
        "caller",
        "fields",
        "has_body",
        "is_chunked",
        "is_of_flow",
        "length",
        "method",
        "network",
        "path",
        "token",
    )

    def __init__(self, scope: Scope) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.fields: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        # The bearer token; empty without one.
        self.token = self.fields.get(b"authorization", b"").partition(b" ")[2].strip()
        self.is_chunked = b"transfer-encoding" in self.fields
        # Of the body, in bytes, as far as it is declared.
        length = self.fields.get(b"content-length", b"")
        self.length = int(length) if length.isdigit() else 0
        self.has_body = self.is_chunked or self.length > 0
        client = scope.get("client")
        self.network = network_of(client[0] if client else "")
        # Whose request this is, for all limits: the address's, unless `Rates` knows the token.
        self.caller: object = self.network
        self.is_of_flow = False


@functools.lru_cache(maxsize=10_000)
def network_of(host: str) -> str:
    """Whose address this is: of IPv6 its first 64 bits, because a site may use all the others."""
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)
