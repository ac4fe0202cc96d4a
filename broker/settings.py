"""The service's settings: the command line, then COUNTERPOISE_… variables, then these defaults.

Every field is an environment variable: `port` is COUNTERPOISE_PORT. Blanks and line ends around a
value do not belong to it: files and secrets end with one. A setting that may hold a secret can be
in a file, which COUNTERPOISE_…_FILE names.
"""

import functools
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from counterpoise.logs.address import fitting
from counterpoise.logs.errors import LogError

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
    """A setting has no valid value; the message is one line that names it."""


class _Variables(EnvSettingsSource):
    """The environment; a variable without a value, or with the address of a Service, is not set."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        text, key, is_complex = super().get_field_value(field, field_name)
        text = (text or "").strip()
        variable = f"{PREFIX}{field_name.upper()}_FILE"
        file = os.environ.get(variable, "").strip()
        if file and not text and SecretStr in get_args(field.annotation):
            text = _in_file(variable, file)
        is_link = field_name == "port" and _LINK.match(text)
        return None if is_link or not text else text, key, is_complex


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


class Settings(BaseSettings):
    """The service's settings. Make it with `load`, which explains wrong values."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    @classmethod
    def settings_customise_sources(  # type: ignore[override]
        cls, settings_cls: type[BaseSettings], init_settings: Any, **_: Any
    ) -> tuple[Any, ...]:
        return init_settings, _Variables(settings_cls)

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8640, ge=0, le=65535, description="0: any free port.")
    data_dir: Path | None = Field(
        default=None,
        description="Where the embedded Postgres lives; default: the user's data directory.",
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="postgresql://user:password@host/database. Without it, the service starts a "
        "Postgres of its own in the data directory.",
    )
    log_database_url: SecretStr | None = Field(
        default=None,
        description="Where the built-in log is; default: in the same database.",
    )
    log_urls: SecretStr | None = Field(
        default=None,
        description="Which logs in Redis and Kafka the service connects to, and how: URLs with "
        "credentials, separated by blanks, e.g. redis://user:password@host:6379 or "
        "kafka://*.example.com:9092. Without it: those on its own machine.",
    )
    log_keep_messages: int = Field(
        default=0,
        ge=0,
        le=2**62,
        description="How many messages of each partition the built-in and Redis logs keep after "
        "every queue has processed them, for warm-ups and to set positions back.",
    )
    log_connections: int = Field(
        default=64,
        ge=1,
        le=10_000,
        description="The most connections to the built-in log with the credentials of one flow, "
        "or of one publishing caller. Each task of Spark that runs needs one.",
    )
    database_pool_size: int = Field(default=10, ge=2, le=1000, description="The most connections.")
    auto_migrate: bool = Field(
        default=True, description="Bring the database up to date at start (see `migrate`)."
    )
    tls_cert: Path | None = Field(
        default=None,
        description="The certificate (PEM, with its chain); then the service speaks HTTPS only.",
    )
    tls_key: Path | None = Field(
        default=None, description="The certificate's private key (PEM), if it is another file."
    )
    allowed_hosts: str = Field(
        default="",
        description="Names by which the service may be called, separated by commas or blanks; "
        "*.example.com allows all below example.com.",
    )
    insecure: bool = Field(
        default=False,
        description="Listen beyond this machine without keys or without TLS. Without keys, "
        "everybody who reaches the service may administer it.",
    )
    keys_optional: bool = Field(
        default=False,
        description="Callers without a key may still do everything, although there are keys: for "
        "the time in which keys are handed out.",
    )
    audit_days: float = Field(
        default=90.0,
        gt=0,
        description="How long the audit of administrative calls is kept, and keys after their end.",
    )
    request_limit_bytes: Annotated[int, Field(ge=1024, le=2**30)] = Field(
        default=2**20, description="The largest request body."
    )
    body_budget_bytes: int = Field(
        default=64 * 2**20,
        ge=1024,
        description="All request bodies that are read or wait for their turn, together; one "
        "caller has a quarter of it, one address half.",
    )
    flow_requests_per_second: float = Field(
        default=100.0,
        ge=0,
        description="Request rate of one flow, in bursts of ten times that; 0: no limit.",
    )
    address_requests_per_second: float = Field(
        default=1000.0,
        ge=0,
        description="Request rate of all callers of one address that are not flows; 0: no limit.",
    )
    address_idle_connections: int = Field(
        default=2000,
        ge=1,
        description="Connections of one address that wait for a request; beyond it the service "
        "ends the longest waiting.",
    )
    key_streams: int = Field(
        default=200,
        ge=1,
        description="Event streams of one key that may be open, sessions of the key included.",
    )
    key_flows: int = Field(
        default=1000, ge=1, description="Flows of one key that may be bound to one queue."
    )
    key_moves: int = Field(
        default=12,
        ge=1,
        description="How often the flows of one key may take a partition of a queue from flows of "
        "other keys, in an hour, times the number of partitions; 100 in all at least. Beyond it, "
        "new flows wait.",
    )
    flow_streams: int = Field(
        default=10, ge=1, description="Event streams of one flow's view that may be open."
    )
    address_streams: int = Field(
        default=1000,
        ge=1,
        description="Event streams of all callers of one address that may be open.",
    )
    history_days: float = Field(
        default=7.0, gt=0, description="How long the history of rebalances and changes is kept."
    )
    shutdown_seconds: float = Field(
        default=5.0, ge=0, le=300, description="How long requests may take to end at shutdown."
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "text", "json"] = Field(
        default="auto", description="auto: text on a terminal, JSON elsewhere."
    )

    @field_validator("database_url", "log_database_url")
    @classmethod
    def _postgres_url(cls, value: SecretStr | None) -> SecretStr | None:
        """Complete: with what libpq's variables say of what it leaves out."""
        if value is None:
            return None
        # Only here: most starts that are refused name no database, and a driver takes its time.
        from counterpoise.logs import postgres

        if _CONTROL.search(value.get_secret_value()):
            raise ValueError("should be one line without control characters")
        try:
            given = postgres.read(value.get_secret_value())
        except postgres.NotOfPostgres:
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
        return SecretStr(postgres.written(place))

    @field_validator("allowed_hosts")
    @classmethod
    def _names(cls, value: str) -> str:
        """In lower case, separated by one blank each."""
        names = value.replace(",", " ").lower().split()
        for name in names:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError("should be names without scheme and port, like www.example.com")
        return " ".join(names)

    @model_validator(mode="after")
    def _no_key_alone(self) -> Self:
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("--tls-key needs --tls-cert")
        return self

    @field_validator("log_urls")
    @classmethod
    def _accesses(cls, value: SecretStr | None) -> SecretStr | None:
        """Each must be of a known kind; the error does not show the value."""
        if value is not None:
            try:
                fitting("redis://any/0/any", value.get_secret_value())
            except LogError as error:
                raise ValueError(f"should be URLs separated by blanks; {error}") from None
        return value


def load(**given: object) -> Settings:
    """The settings; a given value (not None) wins over the environment. So does a `data_dir` that
    is given over the variable of a database.

    Raises SettingsError with one line that names each wrong setting, but not its value, which may
    be secret.
    """
    values: dict[str, Any] = {
        name: value.strip() if isinstance(value, str) else value
        for name, value in given.items()
        if value is not None
    }
    if "data_dir" in values:
        values.setdefault("database_url", None)
    try:
        return Settings(**values)
    except SourceError as error:
        if isinstance(error.__cause__, SettingsError):
            raise error.__cause__ from None
        raise
    except ValidationError as error:
        faults = []
        for item in error.errors(include_input=False, include_url=False, include_context=False):
            message = item["msg"].removeprefix("Value error, ")
            if not item["loc"]:
                # Of several together; the message names them.
                faults.append(message)
                continue
            name = str(item["loc"][0])
            source = (
                f"--{name.replace('_', '-')}"
                if given.get(name) is not None
                else PREFIX + name.upper()
            )
            faults.append(f"{source}: {message}")
        raise SettingsError("; ".join(faults)) from None
