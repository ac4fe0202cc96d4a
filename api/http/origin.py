"""Where a request comes from: which callers may be taken for administrators without a key.

Nothing but its origin makes a caller without a key an administrator. Three things can lie about it:

- **A page in a browser of this machine.** It reaches a loopback service for any site it belongs to.
  The browser marks such a request (`Origin`, `Sec-Fetch-Site`), unless the site has made its own
  name point to the service's address (*DNS rebinding*): then only the `Host` header tells it. So
  the service answers to the names it knows as its own. An address cannot be rebound.
- **A proxy on this machine.** It reaches a loopback service for callers of any machine. It says so
  in a header (`Forwarded`, `X-Forwarded-For` and its kin, `Via`).
- **The network.** On an address beyond this machine nobody is an administrator without a key,
  unless the setting `insecure` says that everybody is.
"""

import ipaddress
import socket

from api.http.head import Head
from broker.core.errors import Forbidden, Unauthorized
from broker.exposure import is_loopback
from broker.settings import Settings

# A kubelet and a load balancer call these by whatever name they have for the service.
_PROBES = frozenset(("/healthz", "/readyz"))
_OF_PROXIES = frozenset((b"forwarded", b"via", b"x-real-ip"))


def check_host(head: Head, settings: Settings) -> None:
    """Raise `Forbidden` if the Host header does not name this service.

    To be checked for every caller if `allowed_hosts` is set, else only for callers without a key: a
    page whose name was rebound to the service's address has none.
    """
    if head.path in _PROBES:
        return
    if not is_own_name(host_name(head.fields.get(b"host", b"").decode("latin-1")), settings):
        raise Forbidden(
            "The Host header does not name this service; call it by its address, or as localhost "
            "on the same machine. Its operator can allow other names with --allowed-hosts."
        )


def check_origin(head: Head, settings: Settings) -> None:
    """Raise unless the origin of a caller without a key makes it an administrator.

    Raises `Unauthorized` if a key is needed, `Forbidden` for another site's page or name.
    """
    check_host(head, settings)
    if not settings.insecure:
        if not is_loopback(settings.host):
            raise Unauthorized(
                "This service listens beyond its own machine: a call without a key is refused."
            )
        if came_through_proxy(head):
            raise Unauthorized(
                "This request came through a proxy, so it may come from another machine: it needs "
                "a key. Call the service directly, on the machine where it runs."
            )
    check_site(head)


def check_site(head: Head) -> None:
    """Raise `Forbidden` if a browser says that the request comes from another site's page."""
    site, origin = head.fields.get(b"sec-fetch-site", b"none"), head.fields.get(b"origin")
    if site not in (b"none", b"same-origin") or (
        origin is not None and origin.partition(b"://")[2] != head.fields.get(b"host")
    ):
        raise Forbidden(
            "This request comes from another site's page; only this service's own page may call."
        )


def came_through_proxy(head: Head) -> bool:
    """Whether some proxy has left its mark on the request."""
    return any(name in _OF_PROXIES or name.startswith(b"x-forwarded") for name in head.fields)


def is_own_name(name: str, settings: Settings) -> bool:
    """Whether the service may be called by this name: lower case, an IPv6 address in brackets."""
    for allowed in settings.allowed_hosts.split():
        if name == allowed or (allowed.startswith("*.") and name.endswith(allowed[1:])):
            return True
    if is_loopback(name):
        return True
    if is_loopback(settings.host):
        return False
    if name == socket.gethostname().lower():
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def host_name(host: str) -> str:
    """A Host header without its port, in lower case; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower().rstrip(".")
