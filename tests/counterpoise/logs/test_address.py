"""Names of logs and access to them: refusals, matches, and secrets that stay secret."""

import sys

import pytest

from counterpoise.logs import InvalidLog, LogError, open_log
from counterpoise.logs.address import (
    environment_access,
    fitting,
    is_on_this_machine,
    parse_log,
    refuse_credentials,
)


@pytest.mark.parametrize(
    "log",
    [
        "redis://user:hunter2@host:1/0/q",
        "redis://hunter2@host/0/q",
        "redis://host/0/q?password=hunter2",
        "redis://host/0/q?db=hunter2",
        "redis://host/0/q#hunter2",
        "kafka://u:hunter2@host/topic",
        "kafka://host/topic?sasl.password=hunter2",
        "dynamo://table?SecretKey=hunter2",
        "dynamo://hunter2@table",
    ],
)
def test_credentials_in_a_logs_name_are_refused_with_a_hint_where_they_go(log):
    with pytest.raises(InvalidLog, match="COUNTERPOISE_LOG_URL") as refusal:
        refuse_credentials(log)
    assert "hunter2" not in str(refusal.value)


def test_logs_of_other_kinds_may_have_settings_that_are_no_secrets():
    refuse_credentials("kinesis://stream?region=eu")


@pytest.mark.parametrize(
    "log",
    [
        "redis://host",
        "redis://host/0",
        "redis://host/flights",
        "redis://host/0/a/b",
        "redis://host/0/a b",
        "redis:///0/q",
        "redis://host:port/0/q",
        "redis://[host/0/q",
        "redis://a,b/0/q",
        "kafka://host",
        "kafka://host/a/b",
        "kafka:///topic",
        "builtin:",
        "builtin:a b",
        "postgresql://host/db",
        "flights",
    ],
)
def test_a_text_that_names_no_log_is_refused(log):
    with pytest.raises(InvalidLog):
        parse_log(log)


def test_one_log_has_one_canonical_spelling():
    same = ["redis://Host/0/q", "redis://host:6379/0/q", "rediss://host/0/q"]
    assert {parse_log(log).canonical() for log in same} == {"redis://host:6379/0/q"}
    assert parse_log("redis://[::1]/0/q").canonical() == "redis://[::1]:6379/0/q"
    assert parse_log("redis://host/1/q").canonical() != parse_log("redis://host/0/q").canonical()
    brokers = ["kafka://a,b:1/t", "kafka://b:1,a:9092/t"]
    assert len({parse_log(log).canonical() for log in brokers}) == 1


def test_of_several_accesses_the_first_that_fits_is_taken():
    urls = (
        "postgresql://p@db/log redis://:x@other:6379 redis://:y@host/2 "
        "rediss://:z@host:6379 kafka://k@b:1"
    )
    for log in ("builtin:q", "builtin:q+r"):
        assert fitting(log, urls) == "postgresql://p@db/log"
    assert fitting("redis://host/0/q", urls) == "rediss://:z@host:6379"
    assert fitting("redis://host/2/q", urls) == "redis://:y@host/2"
    assert fitting("redis://third/0/q", urls) is None
    assert fitting("kafka://a:1,b:1/t", urls) == "kafka://k@b:1"
    assert fitting("redis://host/0/q", "redis://:x@host/0/other") is None


def test_an_access_to_a_domain_is_one_to_the_hosts_of_the_log():
    urls = "redis://*.db.example:6379/0 kafka://u:p@*.example:9092,boss:1?sasl.mechanisms=PLAIN"
    assert fitting("redis://a.db.example/0/q", urls) == "redis://a.db.example:6379/0"
    assert fitting("kafka://boss:1,a.example/t", urls) == (
        "kafka://u:p@boss:1,a.example:9092?sasl.mechanisms=PLAIN"
    )
    for other in (
        "redis://a.db.example/1/q",
        "redis://a.db.example:6380/0/q",
        "redis://db.example/0/q",
        "redis://adb.example/0/q",
        "redis://a.db.example.com/0/q",
        "kafka://a.example,elsewhere/t",
    ):
        assert fitting(other, urls) is None


@pytest.mark.parametrize("host", ["*", "a*.example", "a.*", "*.*.example", "a,*:1", "10.0.*:1"])
def test_a_domain_is_written_in_one_way(host):
    with pytest.raises(LogError, match=r"like \*\.example\.com"):
        fitting("kafka://a/t", f"kafka://u:hunter2*@{host}")


@pytest.mark.parametrize(
    ("hosts", "here"),
    [
        ("localhost,127.0.0.1:1,[::1]", True),
        ("127.7.7.7", True),
        ("127.0.0.1,192.0.2.1", False),
        ("0.0.0.0", False),
        ("127.1", False),
        ("localhost.example", False),
        ("[::ffff:192.0.2.1]", False),
    ],
)
def test_what_is_on_this_machine(hosts, here):
    assert is_on_this_machine(parse_log(f"kafka://{hosts}/t")) is here


def test_an_access_of_no_kind_is_an_error_that_does_not_show_it():
    with pytest.raises(LogError, match="access 2 of 2") as refusal:
        fitting("builtin:q", "postgresql://p@db/log hunter2")
    assert "hunter2" not in str(refusal.value)


def test_the_environment_is_asked_for_known_kinds_only(monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_LOG_URL", "redis://:x@host")
    assert environment_access("redis://host/0/q") == "redis://:x@host"
    assert environment_access("dynamo://table") is None


@pytest.mark.parametrize(
    ("log", "access"),
    [
        ("redis://host/0/q", "postgresql://u:hunter2@h/d"),
        ("builtin:q", "redis://u:hunter2@h"),
        ("redis://host/0/q", "redis://u:hunter2@host/0/other"),
        ("redis://host/0/q", "redis://u:hunter2@host/3"),
        ("redis://host/0/q", "redis://u:hunter2@host?color=hunter2"),
        ("redis://host/0/q", "redis://u:hunter2@host?ssl_ca_certs=hunter2"),
        ("redis://host/0/q", "redis://u:hunter2@host:port"),
        ("redis://host/0/q", "redis://u:hunter2@host,host:6380"),
        ("redis://host/0/q", "redis://u:12?hunter2@host"),
        ("redis://host/0/q", "redis://u:12#hunter2@host"),
        ("kafka://host/q", "kafka://u:12?hunter2@host"),
        ("kafka://host/q", "kafka://u:12#hunter2@host"),
        ("builtin:q", "postgresql://u:hunt@hunter2@host/db"),
        ("builtin:q", "postgresql://u:hunt@hunter2@host?sslmode=require"),
        ("builtin:q", "postgresql://u:hunter2/rest@host:5432/db"),
        ("builtin:q", "postgresql://u:12/hunter2@host:5432/db"),
        ("builtin:q", "postgresql://u:pw@host:hunter2/db"),
    ],
)
def test_an_access_that_does_not_fit_is_refused_without_showing_it(log, access):
    with pytest.raises(LogError) as refusal:
        open_log(log, access)
    assert "hunter2" not in str(refusal.value)
    assert "hunter2" not in repr(refusal.value.__cause__)


@pytest.mark.parametrize("password", ["a@b", "a/b", "1/b"])
def test_a_password_that_a_url_cannot_hold_is_refused_with_what_to_do(password):
    with pytest.raises(LogError, match="percent-encode"):
        open_log("builtin:q", f"postgresql://u:{password}@host:5432/db")


def test_an_access_to_redis_has_one_host():
    with pytest.raises(LogError, match="has one host"):
        open_log("redis://a/0/q", "redis://u:p@a:6379,b:6379")


@pytest.mark.parametrize(
    "access",
    [
        "postgresql:///db?host=/run/postgresql",
        "postgresql://u@/db?host=/run/postgresql",
        "postgresql://u:p%40ss@%2Frun%2Fpostgresql/db",
        "postgresql://u:p@a:1,b:2/db?target_session_attrs=read-write",
        "postgresql://u:p@[::1]:5432/db",
        "postgresql://u:p?#s@host/db",
        "postgresql://host/?user=u@domain&password=p@ss",
        "postgres://host",
    ],
)
def test_usual_accesses_to_the_builtin_log_are_taken(access):
    open_log("builtin:q", access)


def test_a_log_shows_no_credentials():
    log = open_log("redis://host/0/q", "redis://user:hunter2@host")
    assert repr(log) == "RedisLog('redis://host/0/q')"


def test_a_package_that_is_missing_is_named_with_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("counterpoise.logs.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(LogError, match=r"pip install 'counterpoise\[redis\]'"):
        open_log("redis://host/0/q")
