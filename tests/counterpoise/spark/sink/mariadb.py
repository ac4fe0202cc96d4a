"""A MariaDB of Debian's package `mariadb-server-core`, on a socket of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pymysql

from tests.service import eventually

_databases = itertools.count()


class MariaDbServer:
    """One that runs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def listens(self) -> bool:
        """Whether it takes connections. (pymysql closes no Unix socket that it cannot connect.)"""
        with socket.socket(socket.AF_UNIX) as attempt:
            return attempt.connect_ex(str(self._path)) == 0

    def new_database(self) -> str:
        """The URL of an empty one."""
        name = f"results_{next(_databases)}"
        with pymysql.connect(unix_socket=str(self._path), user="root") as connection:
            connection.cursor().execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return f"mariadb://root@localhost/{name}?unix_socket={self._path}"


@contextlib.contextmanager
def running_mariadb() -> Iterator[MariaDbServer]:
    """Fails where the package is missing. The path of a socket must be short."""
    with tempfile.TemporaryDirectory(prefix="mariadb-") as name:
        directory = Path(name)
        data, path, log = (directory / one for one in ("data", "socket", "log"))
        common = ["--no-defaults", f"--datadir={data}"]
        if os.geteuid() == 0:
            common.append("--user=root")
        data.mkdir()  # without tables of its own: nobody needs a grant
        command = ["mariadbd", *common, f"--socket={path}"]
        command += ["--skip-networking", "--skip-grant-tables"]
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        server = MariaDbServer(path)
        try:
            eventually(lambda: process.poll() is not None or server.listens())
            assert process.poll() is None, log.read_text()
            yield server
        finally:
            process.terminate()
            process.wait(240)
