"""HTTPS: the certificate is read at the start and on SIGHUP; an invalid one changes nothing."""

import shutil
import signal
import ssl
from pathlib import Path

import httpx
import pytest

from broker.certificate import Certificate
from broker.exits import Exit
from broker.settings import SettingsError
from tests.broker.test_cli import UNREACHABLE, refusal
from tests.service import ServeProcess, eventually

PAIRS = Path(__file__).parents[1] / "certificates"


def install(name: str, directory: Path) -> tuple[Path, Path]:
    """Make `first` or `second` the certificate and key in the directory."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    shutil.copy(PAIRS / f"{name}.pem", cert)
    shutil.copy(PAIRS / f"{name}-key.pem", key)
    return cert, key


def client(url: str, trusted: str) -> httpx.Client:
    """A client that trusts only this certificate."""
    context = ssl.create_default_context(cafile=str(PAIRS / f"{trusted}.pem"))
    return httpx.Client(base_url=url, verify=context, timeout=60)


def test_a_pair_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    cert, key = install("first", tmp_path)
    shutil.copy(PAIRS / "second-key.pem", key)
    with pytest.raises(SettingsError, match=r"cert\.pem and .*key\.pem"):
        Certificate(cert, key)
    with pytest.raises(SettingsError, match="No such file"):
        Certificate(tmp_path / "missing.pem")
    key.write_text("nonsense")
    line = ["serve", "--port", "0", "--tls-cert", str(cert), "--database-url", UNREACHABLE]
    assert str(cert) in refusal([*line, "--tls-key", str(key)], Exit.SETTINGS)


def test_an_encrypted_key_is_refused_without_a_password_prompt() -> None:
    with pytest.raises(SettingsError, match="encrypted"):
        Certificate(PAIRS / "first.pem", PAIRS / "encrypted-key.pem")


def test_a_key_in_the_certificates_file(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text((PAIRS / "first.pem").read_text() + (PAIRS / "first-key.pem").read_text())
    Certificate(both)


def test_the_certificate_is_renewed_on_a_signal(migrated_url: str, tmp_path: Path) -> None:
    cert, key = install("first", tmp_path)
    log = tmp_path / "serve.log"
    arguments = ["--database-url", migrated_url, "--tls-cert", str(cert), "--tls-key", str(key)]
    with ServeProcess(log, arguments) as service:
        assert "https://127.0.0.1" in service.first_line
        url = service.url.replace("http:", "https:")
        process = service.process
        assert process is not None

        def trusts(name: str) -> bool:
            try:
                with client(url, name) as new:
                    return new.get("/v1/queues").status_code == 200
            except httpx.ConnectError:
                return False

        assert trusts("first")
        assert not trusts("second")
        with client(url, "first") as old:
            assert old.get("/healthz").status_code == 200
            install("second", tmp_path)
            process.send_signal(signal.SIGHUP)
            eventually(lambda: trusts("second"))
            assert not trusts("first")
            # This connection was open before.
            assert old.get("/healthz").status_code == 200
        key.write_text("nonsense")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "was not renewed" in log.read_text())
        assert trusts("second")
        assert service.end() == 0
