"""What clients get of the address that the service itself uses."""

import pytest

from broker.logs.credentials import client_parameters
from counterpoise.logs import postgres


def given(url: str, tls: bool = False) -> str:
    return postgres.written(client_parameters(url, tls=tls))


def test_the_service_s_own_user_and_password_stay_with_it() -> None:
    plain = "postgresql://db.example:6432/logs"
    assert given("postgresql://x:y@db.example:6432/logs") == plain
    assert given("postgresql+asyncpg://db.example:6432/logs?user=x&password=y") == plain
    assert given(f"{plain}?passfile=/root/.pgpass&sslkey=/k&sslpassword=y&options=-cx%3Dy") == plain


def test_how_to_reach_it_is_passed_on() -> None:
    for query in ("sslmode=verify-full", "target_session_attrs=read-write"):
        url = f"postgresql://db.example/logs?{query}"
        assert given(url) == url


@pytest.mark.parametrize(
    ("address", "insists"),
    [
        ("postgresql://x:y@db.example/logs", True),
        ("postgresql://x:y@10.0.0.1/logs", True),
        ("postgresql://x:y@db.example/logs?sslmode=disable", False),
        ("postgresql://x:y@127.0.0.1:5432/logs", False),
        ("postgresql://x:y@[::1]/logs", False),
        ("postgresql://x:y@localhost/logs", False),
        ("postgresql:///logs?host=/run/postgresql", False),
    ],
)
def test_encryption_follows_the_service_s(address: str, insists: bool) -> None:
    assert ("sslmode=require" in given(address, tls=True)) is insists
    assert "sslmode=require" not in given(address)
