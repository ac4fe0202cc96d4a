"""The address of a log, and the access to it.

Address and access are two things. A queue's `log` is public: the service stores it, answers and
events contain it, Spark shows it. So it only names a place; a user, a password or settings in it
are refused. The *access* is a URL of the same kind with credentials and settings (TLS, SASL). It
comes from the consumer's environment or options, or for the built-in log from the service, and is
never shown.

    builtin:QUEUE                       postgresql://user:password@host:port/database
    builtin:QUEUE+QUEUE                 the same for each, separated by blanks
    redis://host:port/DB/NAME           redis://user:password@host:port[/DB[/NAME]], rediss://…
    kafka://host:port[,host:port]/TOPIC kafka://user:password@host:port[,…][/TOPIC]

The environment's COUNTERPOISE_LOG_URL (the service's COUNTERPOISE_LOG_URLS) may hold several
accesses, separated by blanks. The first that matches a log is taken: the same kind, and the same
host, database and name as far as it names them. A host `*.example.com` is every host of that
domain; then all hosts of the log have to match, and are those that are connected to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from counterpoise.logs.errors import InvalidLog, LogError

ENVIRONMENT = "COUNTERPOISE_LOG_URL"

Kind = Literal["builtin", "aligned", "redis", "kafka"]
Host = tuple[str, int | None]

NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_BUILTIN = "builtin:"
_AND = "+"
MOST_ALIGNED = 8
_KINDS: Mapping[str, Kind] = {
    "postgresql": "builtin",
    "postgres": "builtin",
    "redis": "redis",
    "rediss": "redis",
    "kafka": "kafka",
}
_PORTS: Mapping[Kind, int] = {"builtin": 5432, "redis": 6379, "kafka": 9092}
_FORMS: Mapping[Kind, str] = {
    "builtin": "builtin:QUEUE",
    "aligned": "builtin:QUEUE+QUEUE",
    "redis": "redis://host:port/DB/NAME",
    "kafka": "kafka://host:port[,host:port]/TOPIC",
}
_ACCESS_FORMS: Mapping[Kind, str] = {
    "builtin": "postgresql://user:password@host:port/database",
    "redis": "redis://user:password@host:port",
    "kafka": "kafka://user:password@host:port",
}
_ENCODE = "percent-encode special characters of the password (@ is %40, / is %2F, # is %23)"
# Host and port as Postgres's driver reads them; the host may be empty or an address in brackets.
_HOST = re.compile(r"(?:\[[^][@]+\]|[^][:@]*)(?::[0-9]*)?")
_SETTING = re.compile(r"[a-z._]+")
# Hosts with a `*` only for the hosts of a domain.
_DOMAINS = re.compile(r"(?:\*\.)?[^*,]*(?:,(?:\*\.)?[^*,]*)*")
# Names of secrets in the query strings of common clients.
_SECRET = re.compile(r"pass|pwd|secret|token|credential|user|auth|key|sasl", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogAddress:
    """A parsed `log` of a queue. `hosts` and `database` are empty if the kind has none."""

    kind: Kind
    name: str
    hosts: tuple[Host, ...] = ()
    database: int = 0
    secure: bool = False

    @property
    def access_kind(self) -> Kind:
        """The kind of its access: the logs that are read side by side are built in."""
        return "builtin" if self.kind == "aligned" else self.kind

    def canonical(self) -> str:
        """One spelling for each log, to find out whether two queues name the same log."""
        if self.access_kind == "builtin":
            return f"{_BUILTIN}{self.name}"
        hosts = _netloc(sorted(self.hosts, key=str))
        path = f"{self.database}/{self.name}" if self.kind == "redis" else self.name
        return f"{self.kind}://{hosts}/{path}"

    @property
    def parts(self) -> tuple[str, ...]:
        """The logs that are read side by side, as addresses; of any other log itself."""
        if self.kind != "aligned":
            return (self.canonical(),)
        return tuple(f"{_BUILTIN}{name}" for name in self.name.split(_AND))


def kind_of(log: str) -> Kind | None:
    """The kind of log by its scheme; None for unknown kinds."""
    if log.startswith(_BUILTIN):
        return "aligned" if _AND in log else "builtin"
    scheme, separator, _ = log.partition("://")
    kind = _KINDS.get(scheme.lower()) if separator else None
    return None if kind == "builtin" else kind


def refuse_credentials(log: str) -> None:
    """Raises InvalidLog if the log's address seems to contain credentials, for any kind of log."""
    if log.startswith(_BUILTIN):
        return
    parts = _split(log)
    hint = (
        "a queue's log is shown to everybody and must not contain credentials; consumers and "
        f"publishers give them in {ENVIRONMENT} (or the option logUrl), the service in "
        "COUNTERPOISE_LOG_URLS"
    )
    if "@" in parts.netloc:
        raise InvalidLog(f"there is a user or password before the host: {hint}")
    if any(_SECRET.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise InvalidLog(f"the query string may hold credentials: {hint}")
    if parts.fragment or (parts.query and kind_of(log) is not None):
        raise InvalidLog(
            f"a log takes no settings after its name: they belong to the access; {hint}"
        )


def parse_log(log: str) -> LogAddress:
    """Parse a queue's `log`. Raises InvalidLog, also for unknown kinds."""
    if log.startswith(_BUILTIN):
        name = log.removeprefix(_BUILTIN)
        names = name.split(_AND)
        kind: Kind = "builtin" if len(names) == 1 else "aligned"
        if not all(map(NAME.fullmatch, names)):
            raise _not_one(kind)
        if len({*names}) < len(names):
            raise InvalidLog("a log that is read beside others is named twice")
        if len(names) > MOST_ALIGNED:
            raise InvalidLog(f"at most {MOST_ALIGNED} logs are read side by side")
        return LogAddress(kind, name)
    known = kind_of(log)
    if known is None:
        raise InvalidLog(
            f"this version cannot open such a log; it knows {', '.join(_FORMS.values())}"
        )
    kind = known
    refuse_credentials(log)
    parts = _split(log)
    hosts = _hosts(parts, kind)
    database, named = _place(parts, kind)
    if named is None or (kind == "redis" and len(hosts) > 1):
        raise _not_one(kind)
    return LogAddress(kind, named, hosts, database or 0, parts.scheme.lower() == "rediss")


def check_access(address: LogAddress, url: str) -> None:
    """Raises LogError if this access is of another kind than the log, or names another log."""
    kind = _access_kind(url)
    if kind != address.kind:
        raise LogError(
            f"the access given is not one to a log of this kind; it looks like "
            f"{_ACCESS_FORMS[address.kind]}"
        )
    if kind == "builtin":
        _refuse_misread(url)
        return
    parts = _split(url)
    if len(_hosts(parts, kind)) > 1 and kind == "redis":
        raise LogError("an access to Redis has one host")
    if parts.fragment:
        raise LogError(f"this access has a '#': {_ENCODE}")
    database, name = _place(parts, kind)
    if name not in (None, address.name) or database not in (None, address.database):
        raise LogError(
            "the access given is to another log than the queue's; leave database and name out of it"
        )


def fitting(log: str, urls: str) -> str | None:
    """The first of these accesses (separated by blanks) that matches the log; None without one.

    Raises LogError for an access of an unknown kind or with a `*` elsewhere than before a domain,
    because it is a mistake.
    """
    address = parse_log(log)
    accesses = urls.split()
    for place, url in enumerate(accesses, 1):
        if _access_kind(url) is None:
            raise LogError(
                f"access {place} of {len(accesses)} to logs has no known scheme: "
                f"{', '.join(_ACCESS_FORMS.values())}"
            )
        if not _DOMAINS.fullmatch(_split(url).netloc.rpartition("@")[2]):
            raise LogError(
                f"access {place} of {len(accesses)} to logs has a '*' that is not the first part "
                "of a host, like *.example.com"
            )
    found = (_on_hosts(address, u) for u in accesses if _access_kind(u) == address.access_kind)
    return next((u for u in found if u is not None), None)


def environment_access(log: str) -> str | None:
    """The access to this log in the environment's COUNTERPOISE_LOG_URL, None without one."""
    urls = os.environ.get(ENVIRONMENT, "")
    return fitting(log, urls) if urls and kind_of(log) is not None else None


def setting(name: str) -> str:
    """The name of an invalid setting of an access, for messages.

    A name that cannot be a setting may be the end of a password with a `?` in it; it is not shown.
    """
    return f"setting {name!r}" if _SETTING.fullmatch(name) else "such setting"


def _refuse_misread(url: str) -> None:
    """Raises LogError if Postgres's driver would read a part of the password as something else.

    The driver ends user and password at the first `@`, and looks for it before the first `/`. If it
    cannot connect, it quotes the supposed host and port.
    """
    authority, _, rest = url.partition("://")[2].partition("/")
    _, found, after = authority.partition("@")
    hosts = (after if found else authority).partition("?")[0].split(",")
    if "@" in rest.partition("?")[0] or not all(map(_HOST.fullmatch, hosts)):
        raise LogError(
            f"the access to the built-in log looks like {_ACCESS_FORMS['builtin']}: {_ENCODE}"
        )


def is_on_this_machine(address: LogAddress) -> bool:
    """Whether each of its hosts is a loopback address, or `localhost`; no name is looked up."""
    return all(host == "localhost" or _is_loopback(host) for host, _ in address.hosts)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _on_hosts(address: LogAddress, url: str) -> str | None:
    """The access, if it fits the log; one to a domain is one to the hosts of the log."""
    if address.access_kind == "builtin":
        return url
    parts = _split(url)
    database, name = _place(parts, address.kind)
    if database not in (None, address.database) or name not in (None, address.name):
        return None
    hosts = _hosts(parts, address.kind)
    if not any(host.startswith("*.") for host, _ in hosts):
        return url if set(hosts) & set(address.hosts) else None
    if not all(any(_is_in(one, host) for host in hosts) for one in address.hosts):
        return None
    user, found, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}{found}{_netloc(address.hosts)}").geturl()


def _netloc(hosts: Iterable[Host]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts)


def _is_in(one: Host, pattern: Host) -> bool:
    """Whether a host is this one, or of this domain."""
    return one == pattern or (
        pattern[0].startswith("*.") and one[0].endswith(pattern[0][1:]) and one[1] == pattern[1]
    )


def _access_kind(url: str) -> Kind | None:
    return _KINDS.get(url.partition("://")[0].lower()) if "://" in url else None


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise InvalidLog("this is not a URL") from None


def _hosts(parts: SplitResult, kind: Kind) -> tuple[Host, ...]:
    """(host, port) of each server, the host in lower case."""
    found = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        one = _split(f"x://{text}")
        try:
            port = one.port
        except ValueError:
            raise _not_one(kind) from None
        if one.hostname is None:
            raise _not_one(kind)
        found.append((one.hostname, _PORTS[kind] if port is None else port))
    return tuple(found)


def _place(parts: SplitResult, kind: Kind) -> tuple[int | None, str | None]:
    """The database and the name in a path; None for a missing one."""
    path = [unquote(segment) for segment in parts.path.strip("/").split("/") if segment]
    database = None
    if kind == "redis" and path:
        number = path.pop(0)
        if not (number.isascii() and number.isdecimal() and len(number) < 6):
            raise _not_one(kind)
        database = int(number)
    if len(path) > 1 or (path and not NAME.fullmatch(path[0])):
        raise _not_one(kind)
    return database, path[0] if path else None


def _not_one(kind: Kind) -> InvalidLog:
    return InvalidLog(f"a log or access of this kind looks like {_FORMS[kind]}")
