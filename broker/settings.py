"""The service's settings: the command line, then COUNTERPOISE_… variables, then these defaults.

Every field is an environment variable: `port` is COUNTERPOISE_PORT. Blanks and line ends around a
value do not belong to it: files and secrets end with one. A setting that may hold a secret can be
in a file, which COUNTERPOISE_…_FILE names.

A service that refuses to start has read its settings and imported nothing else. So this module
needs msgspec alone, which takes a tenth of what pydantic does.
"""

import functools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct, inspect

PREFIX = "COUNTERPOISE_"
_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
# What both drivers take (`broker.postgres.driver`), and those of which the service has its own.
_TAKEN = frozenset(
    {
        "host",
        "port",
        "dbname",
        "user",
        "password",
        "passfile",
        "options",
        "sslmode",
        "sslcert",
        "sslkey",
        "sslpassword",
        "sslrootcert",
        "sslcrl",
        "sslnegotiation",
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
        "target_session_attrs",
        "krbsrvname",
        "gsslib",
        "application_name",
        "client_encoding",
    }
)
_FORM = "should look like postgresql://user:password@host:5432/database"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Kubernetes and Docker give every container the addresses of others: of a Service `counterpoise`
# in COUNTERPOISE_PORT.
_LINK = re.compile(r"(tcp|udp|sctp)://")


class SettingsError(Exception):
    """A setting, or a file that it names, cannot be used; the message is one line that names it."""


class Secret:
    """A text that is shown nowhere, unless it is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        """The text, for the one that uses it."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(...)"


class Settings(Struct, frozen=True, kw_only=True):
    """The service's settings. Make them with `load`, which explains wrong values."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8640
    """0: any free port."""
    data_dir: Path | None = None
    """Where the embedded Postgres lives; default: the user's data directory."""
    database_url: Secret | None = None
    """postgresql://user:password@host/database. Without it, the service starts a Postgres of its
    own in the data directory.
    """
    log_database_url: Secret | None = None
    """Where the built-in log is; default: in the same database."""
    log_urls: Secret | None = None
    """Which logs in Redis and Kafka the service connects to, and how: URLs with credentials,
    separated by blanks, e.g. redis://user:password@host:6379 or kafka://*.example.com:9092.
    Without it: those on its own machine.
    """
    log_keep_messages: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """How many messages of each partition the built-in and Redis logs keep after every queue has
    processed them, for warm-ups and to set positions back.
    """
    log_connections: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """The most connections to the built-in log with the credentials of one flow, or of one
    publishing caller. Each task of Spark that runs needs one.
    """
    database_pool_size: Annotated[int, Meta(ge=2, le=1000)] = 10
    """The most connections."""
    auto_migrate: bool = True
    """Bring the database up to date at start (see `migrate`)."""
    tls_cert: Path | None = None
    """The certificate (PEM, with its chain); then the service speaks HTTPS only."""
    tls_key: Path | None = None
    """The certificate's private key (PEM), if it is another file."""
    allowed_hosts: str = ""
    """Names by which the service may be called, separated by commas or blanks; *.example.com allows
    all below example.com.
    """
    insecure: bool = False
    """Listen beyond this machine without keys or without TLS. Without keys, everybody who reaches
    the service may administer it.
    """
    keys_optional: bool = False
    """Callers without a key may still do everything, although there are keys: for the time in which
    keys are handed out.
    """
    audit_days: Annotated[float, Meta(gt=0, le=36_500)] = 90.0
    """How long the audit of administrative calls is kept, and keys after their end."""
    request_limit_bytes: Annotated[int, Meta(ge=1024, le=2**30)] = 2**20
    """The largest request body."""
    body_budget_bytes: Annotated[int, Meta(ge=1024)] = 64 * 2**20
    """All request bodies that are read or wait for their turn, together; one caller has a quarter
    of it, one address half.
    """
    flow_requests_per_second: Annotated[float, Meta(ge=0)] = 100.0
    """Request rate of one flow, in bursts of ten times that; 0: no limit."""
    address_requests_per_second: Annotated[float, Meta(ge=0)] = 1000.0
    """Request rate of all callers of one address that are not flows; 0: no limit."""
    address_idle_connections: Annotated[int, Meta(ge=1)] = 2000
    """Connections of one address that wait for a request; beyond it the service ends the longest
    waiting.
    """
    key_streams: Annotated[int, Meta(ge=1)] = 200
    """Event streams of one key that may be open, sessions of the key included."""
    key_flows: Annotated[int, Meta(ge=1)] = 1000
    """Flows of one key that may be bound to one queue."""
    key_moves: Annotated[int, Meta(ge=1)] = 12
    """How often the flows of one key may take a partition of a queue from flows of other keys, in
    an hour, times the number of partitions; 100 in all at least. Beyond it, new flows wait.
    """
    flow_streams: Annotated[int, Meta(ge=1)] = 10
    """Event streams of one flow's view that may be open."""
    address_streams: Annotated[int, Meta(ge=1)] = 1000
    """Event streams of all callers of one address that may be open."""
    history_days: Annotated[float, Meta(gt=0, le=36_500)] = 7.0
    """How long the history of rebalances and changes is kept."""
    shutdown_seconds: Annotated[float, Meta(ge=0, le=300)] = 5.0
    """How long requests may take to end at shutdown."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "text", "json"] = "auto"
    """auto: text on a terminal, JSON elsewhere."""


SECRETS = frozenset(
    field.name for field in msgspec.structs.fields(Settings) if Secret in get_args(field.type)
)
"""The settings that may hold a secret."""


def _postgres_url(url: Secret) -> Secret:
    """Complete: with what libpq's variables say of what it leaves out."""
    # Only here: most starts that are refused name no database, and a driver takes its time.
    from counterpoise.logs import InvalidLog, postgres

    if _CONTROL.search(url.get_secret_value()):
        raise ValueError("should be one line without control characters")
    try:
        given = postgres.read(url.get_secret_value())
    except InvalidLog:
        raise ValueError(_FORM) from None
    if refused := given.keys() - _TAKEN:
        raise ValueError(f"leave {min(refused)} out of the URL; the service does not take it")
    place = postgres.completed(given, _TAKEN)
    host = place.get("host", "")
    if "," in host + place.get("port", ""):
        # The drivers take several in different ways, and one that is silent takes all the time
        # that there is for a connection.
        raise ValueError(
            "should name one host: an address that leads to the primary, also after a failover"
        )
    if not host:
        raise ValueError(
            "should name the host, or the directory of its socket: "
            "postgresql:///database?host=/run/postgresql"
        )
    # An address of IPv6, a name, another address, or the directory of a socket.
    has_colon = ":" in host and not host.startswith("/")
    is_host = postgres.is_ipv6(host) if has_colon else not host.startswith("@")
    if not is_host or not place.get("dbname"):
        raise ValueError(_FORM)
    return Secret(postgres.written(place))


def _host_names(text: str) -> str:
    """In lower case, separated by one blank each."""
    names = text.replace(",", " ").lower().split()
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise ValueError("should be names without scheme and port, like www.example.com")
    return " ".join(names)


def _accesses(urls: Secret) -> Secret:
    """Each must be of a known kind; the error does not show the value."""
    from counterpoise.logs.address import fitting
    from counterpoise.logs.errors import LogError

    try:
        fitting("redis://any/0/any", urls.get_secret_value())
    except LogError as error:
        raise ValueError(f"should be URLs separated by blanks; {error}") from None
    return urls


# What files of settings are written with, besides true and false.
_AS_BOOLEAN = {"yes": "true", "on": "true", "no": "false", "off": "false"}

# What a type cannot say of the value of a setting; each raises ValueError with what it should be.
_RULES: Mapping[str, Callable[[Any], Any]] = {
    "database_url": _postgres_url,
    "log_database_url": _postgres_url,
    "log_urls": _accesses,
    "allowed_hosts": _host_names,
}


def load(environment: Mapping[str, str] = os.environ, /, **given: object) -> Settings:
    """The settings; a given value (not None) wins over the environment. So does a `data_dir` that
    is given over the variable of a database.

    Raises SettingsError with one line that names each wrong setting, but not its value, which may
    be secret.
    """
    values: dict[str, Any] = {n: value for n, value in given.items() if value is not None}
    options = {name: f"--{name.replace('_', '-')}" for name in values}
    if "data_dir" in values:
        values.setdefault("database_url", None)
    for name in Settings.__struct_fields__:
        if name not in values and (text := _in_environment(environment, name)):
            values[name] = text
    faults = []
    for field in msgspec.structs.fields(Settings):
        if values.get(field.name) is None:
            continue
        try:
            values[field.name] = _checked(field, values[field.name])
        except ValueError as error:
            source = options.get(field.name, PREFIX + field.name.upper())
            faults.append(f"{source}: {error}")
    if not faults and "tls_key" in values and "tls_cert" not in values:
        faults.append("--tls-key needs --tls-cert")
    if faults:
        raise SettingsError("; ".join(faults))
    return Settings(**values)


def _in_environment(environment: Mapping[str, str], name: str) -> str:
    """The text of the variable of a setting, or in the file that one names; empty: not set."""
    variable = PREFIX + name.upper()
    text = environment.get(variable, "").strip()
    file = environment.get(f"{variable}_FILE", "").strip()
    if file and not text and name in SECRETS:
        text = _in_file(f"{variable}_FILE", file)
    return "" if name == "port" and _LINK.match(text) else text


@functools.cache
def _in_file(variable: str, file: str) -> str:
    """What is in the file, without blanks around it. Read once: it may be a pipe."""
    try:
        text = Path(file).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"{variable}: {file} cannot be read: {said}") from None
    if not text:
        raise SettingsError(f"{variable}: {file} is empty")
    return text


def _checked(field: msgspec.structs.FieldInfo, value: object) -> Any:
    """The value in the setting's type. Raises ValueError with what it should be."""
    if isinstance(value, str):
        value = value.strip()
        if field.type is bool:
            value = _AS_BOOLEAN.get(value.lower(), value)
    try:
        value = msgspec.convert(value, field.type, strict=False, dec_hook=_made)
    except msgspec.ValidationError:
        # Its message may show the value.
        raise ValueError(f"should be {_expected(inspect.type_info(field.type))}") from None
    rule = _RULES.get(field.name)
    return value if rule is None else rule(value)


def _made(kind: type, value: object) -> object:
    """A value of the types that msgspec does not make itself: paths and secrets."""
    return value if isinstance(value, kind) else kind(value)


def _expected(kind: inspect.Type) -> str:
    """What the values of a type are, for people."""
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values):
            return f"{', '.join(map(str, values[:-1]))} or {values[-1]}"
        case inspect.IntType() | inspect.FloatType():
            noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            if kind.gt is not None:
                most = "" if kind.le is None else f" and at most {kind.le:,}"
                return f"{noun} above {kind.gt:g}{most}"
            if kind.le is None:
                return f"{noun} of {kind.ge:g} at least"
            return f"{noun} from {kind.ge:,} to {kind.le:,}"
        case _:
            return "a text of one character at least"
