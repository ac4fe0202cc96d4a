"""Settings: the command line, then the environment; an error is reported in one line."""

import os
from pathlib import Path

import pytest

from broker.settings import Settings, SettingsError, load


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {f"COUNTERPOISE_{name.upper()}" for name in Settings.__struct_fields__}
    ours |= {f"{name}_FILE" for name in ours}
    for name in [name for name in os.environ if name in ours or name.startswith("PG")]:
        monkeypatch.delenv(name)


def test_defaults() -> None:
    settings = load()
    assert (settings.host, settings.port) == ("127.0.0.1", 8640)
    assert settings.database_url is None
    assert settings.auto_migrate
    assert not settings.insecure


def test_every_setting_is_a_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "host": "::1",
        "port": "0",
        "data_dir": "/srv/counterpoise",
        "database_url": "postgres://u:p@host/db",
        "log_database_url": "postgresql://host/log",
        "log_urls": "redis://:p@host:1 kafka://u:p@host",
        "database_pool_size": "3",
        "auto_migrate": "false",
        "insecure": "1",
        "tls_cert": "/etc/cert.pem",
        "tls_key": "/etc/key.pem",
        "allowed_hosts": "queues.example.com,*.Example.org",
        "request_limit_bytes": "2048",
        "body_budget_bytes": "4096",
        "flow_requests_per_second": "0",
        "address_requests_per_second": "20.5",
        "address_idle_connections": "9",
        "key_streams": "9",
        "key_flows": "9",
        "key_moves": "9",
        "flow_streams": "9",
        "address_streams": "9",
        "history_days": "0.5",
        "keys_optional": "true",
        "audit_days": "30",
        "log_connections": "4",
        "log_keep_messages": "50000",
        "shutdown_seconds": "1",
        "log_level": "debug",
        "log_format": "json",
    }
    assert set(values) == set(Settings.__struct_fields__)
    for name, value in values.items():
        monkeypatch.setenv(f"COUNTERPOISE_{name.upper()}", value)
    settings = load()
    assert settings.data_dir == Path("/srv/counterpoise")
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == "postgresql://u:p@host/db"
    assert not settings.auto_migrate
    assert settings.port == 0


def test_the_command_line_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_PORT", "1")
    assert load(port=0, host=None).port == 0


def test_a_directory_on_the_command_line_wins_over_the_variable_of_a_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A backup, a restore or a fence would be of another database than the one that was named."""
    monkeypatch.setenv("COUNTERPOISE_DATABASE_URL", "postgresql://127.0.0.1/others")
    assert load(data_dir=tmp_path).database_url is None
    assert load().database_url is not None
    both = load(data_dir=tmp_path, database_url="postgresql://127.0.0.1/ours")
    assert both.database_url is not None


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a_variable_without_a_value_counts_as_unset(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    for name in Settings.__struct_fields__:
        monkeypatch.setenv(f"COUNTERPOISE_{name.upper()}", text)
    assert load() == Settings()


def test_blanks_and_line_ends_around_a_value_are_not_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"host": "localhost", "port": "1", "insecure": "true", "log_level": "debug"}
    values |= {"tls_cert": "/cert.pem", "database_url": "postgresql://host/db"}
    plain = load(**values)
    assert load(**{name: f" {value}\r\n" for name, value in values.items()}) == plain
    for name, value in values.items():
        monkeypatch.setenv(f"COUNTERPOISE_{name.upper()}", f" {value}\r\n")
    assert load() == plain


@pytest.mark.parametrize(
    ("text", "value"), [("TRUE", True), ("on", True), ("1", True), ("No", False), ("0", False)]
)
def test_a_boolean_is_written_as_people_do(
    monkeypatch: pytest.MonkeyPatch, text: str, value: bool
) -> None:
    monkeypatch.setenv("COUNTERPOISE_INSECURE", text)
    monkeypatch.setenv("COUNTERPOISE_AUTO_MIGRATE", text)
    loaded = load()
    assert (loaded.insecure, loaded.auto_migrate) == (value, value)


def test_a_given_value_of_blanks_is_not_taken_for_the_default() -> None:
    with pytest.raises(SettingsError, match="--host: "):
        load(host=" ")


@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
def test_the_address_of_a_service_is_no_port(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Kubernetes and Docker write that of a Service named `counterpoise` into this variable."""
    monkeypatch.setenv("COUNTERPOISE_PORT", f"{protocol}://127.0.0.1:8640")
    assert load().port == 8640
    monkeypatch.setenv("COUNTERPOISE_DATABASE_URL", f"{protocol}://127.0.0.1:5432")
    with pytest.raises(SettingsError, match="COUNTERPOISE_DATABASE_URL: should look like"):
        load()


def test_an_error_names_the_source_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_PORT", "http")
    with pytest.raises(SettingsError) as caught:
        load(log_level="loud")
    message = str(caught.value)
    assert "COUNTERPOISE_PORT: " in message
    assert "--log-level: " in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("port", "70000", "a whole number from 0 to 65,535"),
        ("key_moves", "0", "a whole number of 1 at least"),
        ("audit_days", "0", "a number above 0 and at most 36,500"),
        ("history_days", "inf", "a number above 0 and at most 36,500"),
        ("shutdown_seconds", "nan", "a number from 0 to 300"),
        ("insecure", "perhaps", "true or false"),
        ("log_level", "loud", "debug, error, info or warning"),
    ],
)
def test_an_error_says_what_the_setting_should_be(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, says: str
) -> None:
    monkeypatch.setenv(f"COUNTERPOISE_{name.upper()}", text)
    with pytest.raises(SettingsError) as caught:
        load()
    assert str(caught.value) == f"COUNTERPOISE_{name.upper()}: should be {says}"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:hunter2@host/db",
        "u:hunter2@host/db",
        "postgresql://u:hunter2@host",
        "postgresql://u:hunter2@host:port/db",
        "postgresql://u:hunter2@[host/db",
        "postgresql://u:hunter2@/db?host=one:1",
        "postgresql://u:hunter2@%40abstract/db",
        "postgresql://u:hunter2@host/db?color=hunter2",
        "postgresql://u:hunter2@host/db%00",
        "postgresql://u:hunter2@host/%ff",
        "postgresql://u:hunter2@host/db\nother",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(database_url=url)
    assert "--database-url: " in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@one,two/db",
        "postgresql://u:hunter2@one:5432,two:5433/db",
        "postgresql://u:hunter2@/db?host=one,two&target_session_attrs=read-write",
    ],
)
def test_a_url_of_several_servers_is_refused(url: str) -> None:
    """The drivers do not agree on them."""
    for setting in ("database_url", "log_database_url"):
        with pytest.raises(SettingsError, match="should name one host") as caught:
            load(**{setting: url})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["connect_timeout", "channel_binding", "keepalives"])
def test_what_only_one_of_the_drivers_takes_is_refused(name: str) -> None:
    """The other one passes it to the server, which refuses the connection."""
    with pytest.raises(SettingsError, match=f"--database-url: leave {name} out"):
        load(database_url=f"postgresql://u:p@host/db?sslmode=require&{name}=1")


def test_a_url_without_a_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each driver looks for a server in other places."""
    with pytest.raises(SettingsError, match="--database-url: should name the host"):
        load(database_url="postgresql://u:p@/db")
    monkeypatch.setenv("PGHOST", "db.example")
    monkeypatch.setenv("PGSSLMODE", "require")
    monkeypatch.setenv("PGCHANNELBINDING", "require")  # not of every driver
    settings = load(database_url="postgresql://u:p@/db")
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == (
        "postgresql://u:p@db.example/db?sslmode=require"
    )


def test_what_two_settings_say_together_is_laid_to_no_third(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tls_key=tmp_path)
    assert str(caught.value) == "--tls-key needs --tls-cert"


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:a,b@one/db?application_name=a,b", "postgresql:///db?host=/run/postgresql"],
)
def test_a_url_of_one_server_may_have_commas_elsewhere(url: str) -> None:
    assert load(database_url=url).database_url is not None


def test_settings_do_not_show_passwords() -> None:
    assert "hunter2" not in repr(load(database_url="postgresql://u:hunter2@host/db"))
    assert "hunter2" not in repr(load(log_urls="redis://:hunter2@host"))


@pytest.mark.parametrize("urls", ["hunter2", "redis://:p@host mail://u:hunter2@host"])
def test_wrong_accesses_to_logs_are_refused_without_showing_them(urls: str) -> None:
    with pytest.raises(SettingsError, match="--log-urls: should be URLs") as caught:
        load(log_urls=urls)
    assert "hunter2" not in str(caught.value)


def test_zero_is_a_value() -> None:
    assert load(port=0, shutdown_seconds=0).shutdown_seconds == 0


@pytest.mark.parametrize("name", ["database_url", "log_database_url", "log_urls"])
def test_a_secret_may_be_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    value = "redis://:p@host:1" if name == "log_urls" else "postgresql://u:p@host/db"
    file = tmp_path / "secret"
    file.write_text(f"{value}\n")
    monkeypatch.setenv(f"COUNTERPOISE_{name.upper()}_FILE", str(file))
    assert getattr(load(), name) == getattr(load(**{name: value}), name)
    other = value.replace("host", "other")
    monkeypatch.setenv(f"COUNTERPOISE_{name.upper()}", other)
    assert getattr(load(), name) == getattr(load(**{name: other}), name)


@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file"), (b"\n", "is empty"), (b"\xff", "not text")]
)
def test_a_file_without_the_secret_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("COUNTERPOISE_DATABASE_URL_FILE", str(file))
    with pytest.raises(SettingsError, match=f"^COUNTERPOISE_DATABASE_URL_FILE: .*{says}"):
        load()
    # Only a secret may be in a file.
    monkeypatch.delenv("COUNTERPOISE_DATABASE_URL_FILE")
    monkeypatch.setenv("COUNTERPOISE_HOST_FILE", str(file))
    assert load().host == "127.0.0.1"
