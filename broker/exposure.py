"""Who can reach the service, and what it needs to be started there.

On a loopback address only this machine reaches it, and needs neither keys nor TLS. Beyond it, a
service without keys is everybody's, and without TLS whoever is on the way reads the keys and the
log's credentials. So it does not start there without both, unless its operator says `--insecure`.
"""

import ipaddress

from broker.settings import Settings


def is_loopback(host: str) -> bool:
    """Whether an address or name can be reached from this machine alone."""
    name = host.strip("[]")
    if name.lower() == "localhost" or name.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def missing(settings: Settings, *, has_keys: bool) -> list[str]:
    """What the service lacks to listen where it is told to, each with the remedy; empty on
    loopback."""
    if is_loopback(settings.host):
        return []
    lacks = []
    if not has_keys:
        lacks.append("a key")
    if settings.tls_cert is None:
        lacks.append("TLS (--tls-cert and --tls-key)")
    return lacks


def refusal(settings: Settings, *, has_keys: bool) -> str | None:
    """Why the service must not start, in a sentence; None if it may."""
    lacks = missing(settings, has_keys=has_keys)
    if settings.insecure or not lacks:
        return None
    return (
        f"{settings.host} can be reached from other machines, and for that the service needs "
        f"{' and '.join(lacks)}; listen on 127.0.0.1 instead, or start it with --insecure if "
        "everybody who reaches it may administer it"
    )


def refusal_at_once(settings: Settings) -> str | None:
    """As `refusal`, if the database need not be asked: without TLS, keys make no difference."""
    return refusal(settings, has_keys=False) if settings.tls_cert is None else None


def warning(settings: Settings, *, has_keys: bool) -> str | None:
    """What an operator must know who has started the service with `insecure`."""
    lacks = missing(settings, has_keys=has_keys)
    if not lacks:
        return None
    if not has_keys:
        return (
            "INSECURE: everybody who reaches this service may administer it, read its queues and "
            "get credentials for its log"
        )
    return "INSECURE: without TLS, keys and credentials can be read on the way"
