"""An object store with conditional puts and a REST catalog for Iceberg: SeaweedFS, in one process.

It listens on loopback only, and keeps its files in one directory.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pyarrow.fs import FileType, S3FileSystem
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, RESTError

from tests.service import eventually, free_port

PROGRAM = Path(sys.executable).with_name("weed")
KEY, SECRET = "key", "secret"
BUCKET, TABLES = "lake", "tables"
PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc"),
    *("filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc", "s3.port.iceberg"),
    *("admin.port", "admin.port.grpc"),
)


class ObjectStore:
    """One that runs."""

    def __init__(self, s3_port: int, catalog_port: int) -> None:
        self.s3 = f"http://127.0.0.1:{s3_port}"
        self.catalog = f"http://127.0.0.1:{catalog_port}"
        self.options = {
            "AWS_ENDPOINT_URL": self.s3,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        """For delta-rs."""
        self.properties = {
            "type": "rest",
            "uri": self.catalog,
            "warehouse": f"s3://{TABLES}",
            "credential": f"{KEY}:{SECRET}",
            "oauth2-server-uri": f"{self.catalog}/v1/oauth/tokens",
            "s3.endpoint": self.s3,
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
            "s3.region": "us-east-1",
        }
        """For pyiceberg."""

    def is_ready(self) -> bool:
        """Whether both buckets are there, which are made after the ports answer."""
        try:
            files = S3FileSystem(
                access_key=KEY,
                secret_key=SECRET,
                region="us-east-1",
                endpoint_override=self.s3,
                connect_timeout=5,
                request_timeout=5,
            )
            made = files.get_file_info(BUCKET).type is FileType.Directory
            load_catalog("tests", **self.properties).list_namespaces()
        except (OSError, RESTError, NoSuchNamespaceError):
            return False
        return made


@contextlib.contextmanager
def running_store(directory: Path) -> Iterator[ObjectStore]:
    """It ends with the block."""
    ports = {name: free_port() for name in PORTS}
    command = [str(PROGRAM), "mini", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-webdav=false", "-admin.ui=false", "-master.telemetry=false", "-s3.port.lance=0"]
    command += [f"-bucket={BUCKET}", f"-tableBucket={TABLES}"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    environment = os.environ | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    store = ObjectStore(ports["s3.port"], ports["s3.port.iceberg"])
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            eventually(lambda: process.poll() is not None or store.is_ready())
            assert process.poll() is None, (directory / "output").read_text()[-3000:]
            yield store
        finally:
            process.kill()
            process.wait()
