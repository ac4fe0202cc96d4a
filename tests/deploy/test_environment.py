"""The environment of a checkout: its layers, what uv is told, and whose it is."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def environment() -> Any:
    spec = importlib.util.spec_from_file_location("environment", ROOT / "deploy/environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_uv_looks_where_pip_is_told_to_look(
    environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("UV_INDEX", "mine")
    config = """\
:env:.find-links='/wheels /more'
:env:.disable-pip-version-check='1'
global.cert='/certificates.pem'
global.extra-index-url='theirs'
global.index-url='http://127.0.0.1/of-all'
install.index-url='http://127.0.0.1/of-installs'
"""
    assert environment.index_settings(config) == {
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_DEFAULT_INDEX": "http://127.0.0.1/of-installs",
        "SSL_CERT_FILE": "/certificates.pem",
    }


def make(directory: Path, layer: str = "demo") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "deploy/environment.py"), str(directory), layer]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def python_of(directory: Path, version: str) -> None:
    """A Python of this version, as far as is asked."""
    (directory / "bin").mkdir(parents=True)
    (directory / "bin/python").write_text(f"#!/bin/sh\necho {version}\n")
    (directory / "bin/python").chmod(0o755)


def test_an_environment_of_another_checkout_is_left_alone(tmp_path: Path) -> None:
    python_of(tmp_path, f"{sys.version_info.major}.{sys.version_info.minor}")
    (tmp_path / ".checkout").write_text("/other/checkout\n")
    (tmp_path / ".demo-layer").touch()
    made = make(tmp_path)
    assert made.returncode == 1
    assert f"belongs to the checkout /other/checkout, and this one is {ROOT}" in made.stderr
    assert (tmp_path / ".demo-layer").exists()
    said = subprocess.run(
        ["make", "-C", str(ROOT), "setup", f"VENV={tmp_path}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 2
    assert "belongs to the checkout" in said.stderr


def test_an_environment_of_another_python_is_left_alone(tmp_path: Path) -> None:
    python_of(tmp_path, "3.9")
    made = make(tmp_path)
    assert made.returncode == 1
    assert "has Python 3.9, and PYTHON is" in made.stderr


@pytest.mark.xdist_group("wheels")
@pytest.mark.matrix("installer")
@pytest.mark.long
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_layers_are_added_and_kept(
    environment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installer: str
) -> None:
    if installer == "pip":
        monkeypatch.setattr(environment.Environment, "_has_uv", lambda self: False)
    made = environment.Environment(tmp_path / "venv")
    made.add("release")
    made.add("docs")
    assert made.layers() == ["docs", "release"]
    look = "from importlib.util import find_spec as f; import sys; print(*map(f, sys.argv[1:]))"
    command = [
        str(tmp_path / "venv/bin/python"),
        "-c",
        look,
        "build",
        "mkdocs",
        "counterpoise",
        "broker",
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "None" not in found.stdout
