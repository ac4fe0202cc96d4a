"""Beyond this machine a service needs keys and TLS, or an operator who explicitly allows it
without.
"""

from pathlib import Path

import pytest

from broker.exposure import is_loopback, refusal, warning
from broker.settings import SettingsError, load

TLS = {"tls_cert": Path("cert.pem")}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_this_machine_nothing_is_needed(host: str) -> None:
    assert refusal(load(host=host), has_keys=False) is None
    assert warning(load(host=host, insecure=True), has_keys=False) is None


def test_beyond_it_keys_and_tls_are() -> None:
    open_to_all = load(host="0.0.0.0")
    line = refusal(open_to_all, has_keys=False)
    assert line is not None
    assert "a key and TLS" in line
    assert "--insecure" in line
    line = refusal(open_to_all, has_keys=True)
    assert line is not None
    assert "a key" not in line.partition("needs")[2]
    assert refusal(load(host="0.0.0.0", **TLS), has_keys=False) is not None
    safe = load(host="0.0.0.0", **TLS)
    assert refusal(safe, has_keys=True) is None
    assert warning(safe, has_keys=True) is None


def test_an_insecure_service_is_warned_about() -> None:
    settings = load(host="0.0.0.0", insecure=True)
    assert refusal(settings, has_keys=False) is None
    for has_keys, word in ((False, "administer"), (True, "TLS")):
        line = warning(settings, has_keys=has_keys)
        assert line is not None
        assert line.startswith("INSECURE")
        assert word in line


def test_a_key_needs_its_certificate() -> None:
    with pytest.raises(SettingsError, match="tls-cert"):
        load(tls_key=Path("key.pem"))


@pytest.mark.parametrize("names", ["https://example.com", "example.com:8640", "a/b", "*", "a.*"])
def test_invalid_host_names_are_refused(names: str) -> None:
    with pytest.raises(SettingsError, match="allowed-hosts"):
        load(allowed_hosts=names)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.4", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
