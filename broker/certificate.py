"""The certificate that the service serves with.

It is read at the start, and anew on SIGHUP. A new certificate serves the connections that begin
after it was read; those that are open keep the old one. One that cannot be read, or does not fit
its key, changes nothing and is said in the log.
"""

import ssl
from pathlib import Path

import structlog

from broker.settings import Settings, SettingsError

log = structlog.get_logger("tls")


class Certificate:
    """A certificate file and its key; `context` serves with the present one."""

    def __init__(self, cert: Path, key: Path | None = None) -> None:
        """Raises `SettingsError`. `key` None: it is in the certificate's file."""
        self.cert = cert
        self.key = key
        self.context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def renew(self) -> bool:
        """Take the files anew. False, and an error in the log, if they cannot be used."""
        try:
            # A context keeps what it has of a pair whose key does not fit. So another one tries.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except SettingsError as error:
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
            raise SettingsError(f"cannot use the certificate in {files}: {reason}") from None
        return context


def certificate_of(settings: Settings) -> Certificate | None:
    """The certificate to serve with, None for HTTP. Raises `SettingsError`."""
    if settings.tls_cert is None:
        return None
    return Certificate(settings.tls_cert, settings.tls_key)


def _no_password() -> str:
    raise SettingsError("the certificate's key is encrypted; give one that is not")
