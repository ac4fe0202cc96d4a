"""Who can reach the service, what it needs to be started there, and its certificate.

On a loopback address only this machine reaches it, and needs neither keys nor TLS. Beyond it, a
service without keys is everybody's, and without TLS whoever is on the way reads the keys and the
log's credentials. So it does not start there without both, unless its operator says `--insecure`.

The certificate is read at the start, and anew on SIGHUP. A new certificate serves the connections
that begin after it was read; those that are open keep the old one. One that cannot be read, or does
not fit its key, changes nothing and is said in the log.
"""

import ipaddress
import ssl
from pathlib import Path

import structlog

from broker.settings import Settings

log = structlog.get_logger("tls")


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


class TlsError(Exception):
    """The certificate or its key cannot be used; the message is one line that names the files."""


class Certificate:
    """A certificate file and its key; `context` serves with the present one."""

    def __init__(self, cert: Path, key: Path | None = None) -> None:
        """Raises `TlsError`. `key` None: it is in the certificate's file."""
        self.cert = cert
        self.key = key
        self.context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def renew(self) -> bool:
        """Take the files anew. False, and an error in the log, if they cannot be used."""
        try:
            # A context keeps what it has of a pair whose key does not fit. So another one tries.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except TlsError as error:
            log.error("the certificate was not renewed", error=str(error))
            return False
        log.info("the certificate was renewed", cert=str(self.cert))
        return True

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        try:
            # Without a function for it, OpenSSL would ask the terminal for the key's password.
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except OSError as error:
            files = f"{self.cert}" if self.key is None else f"{self.cert} and {self.key}"
            reason = getattr(error, "reason", None) or error.strerror or str(error)
            raise TlsError(f"cannot use the certificate in {files}: {reason}") from None
        return context


def certificate_of(settings: Settings) -> Certificate | None:
    """The certificate to serve with, None for HTTP. Raises `TlsError`."""
    if settings.tls_cert is None:
        return None
    return Certificate(settings.tls_cert, settings.tls_key)


def _no_password() -> str:
    raise TlsError("the certificate's key is encrypted; give one that is not")
