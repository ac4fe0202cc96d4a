"""Snapshots of partition states, readable by all applications that share a queue.

A snapshot says: "the state of this partition of this log, at this position". By the theory (docs,
*Warm-up*) it is correct whoever wrote it and whenever it is read, so writers need no coordination.
Readers must only never see a half-written file, and must detect damage. So a file is written under
another name, flushed to the disk and renamed into place, and its checksum is verified when it is
read.

A file is a line of JSON (the snapshot's identity), the bytes of the state, their CRC-32 and their
number.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, cast
from urllib.parse import quote, unquote

logger = logging.getLogger("counterpoise.spark")

T = TypeVar("T")

_FORMAT = 1
_TRAILER = struct.Struct(">IQ")
_BUFFER_BYTES = 1024 * 1024
# An unfinished file of this age was left by a process that died.
_ABANDONED_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of `partition` at `position` of the log with the incarnation `log`.

    `epoch` is that of the owner that published it. `queue` is the service's id of the queue.
    """

    queue: str
    log: str
    partition: int
    epoch: int
    position: str


class SnapshotStore(Protocol):
    """A place for snapshots. Several threads and processes may call all methods at once."""

    def publish(self, snapshot: Snapshot, write: Callable[[BinaryIO], None]) -> None:
        """Store what `write` writes, all or nothing. Raises OSError, and what `write` raises."""
        ...

    def found(self, queue: str, log: str, partition: int) -> list[Snapshot]:
        """The existing snapshots, in no order. Raises OSError."""
        ...

    def load(self, snapshot: Snapshot, read: Callable[[BinaryIO], T]) -> T:
        """The result of `read`. Raises OSError if it is damaged or gone."""
        ...

    def prune(self, queue: str, log: str, partition: int, keep: Collection[Snapshot]) -> None:
        """Delete the partition's snapshots except these. Raises OSError."""
        ...


class Snapshots:
    """Snapshots in a directory that all applications reach (a local one, NFS, a mounted volume).

    Its file system must rename atomically within a directory. The first snapshot creates it.
    Loading runs the state's `load`: let only the applications write there if that is `pickle`.
    """

    def __init__(self, directory: str | Path) -> None:
        """The directory is created with the first snapshot."""
        self.directory = Path(directory)

    def __repr__(self) -> str:
        return f"Snapshots({str(self.directory)!r})"

    def publish(self, snapshot: Snapshot, write: Callable[[BinaryIO], None]) -> None:
        target = self._path(snapshot)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._sweep(target.parent)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb", buffering=_BUFFER_BYTES) as file:
                file.write(json.dumps({"format": _FORMAT, **asdict(snapshot)}).encode() + b"\n")
                summed = _Summing(file)
                with io.BufferedWriter(summed, _BUFFER_BYTES) as body:
                    write(cast("BinaryIO", body))
                    body.flush()
                file.write(_TRAILER.pack(summed.crc, summed.size))
                file.flush()
                os.fsync(file.fileno())
            # Readable for applications of all users that can read the directory.
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def found(self, queue: str, log: str, partition: int) -> list[Snapshot]:
        try:
            names = os.listdir(self._folder(queue, log, partition))
        except FileNotFoundError:
            return []
        found = []
        for name in names:
            parts = re.fullmatch(r"([^_]+)_([0-9]+)\.snapshot", name)
            if parts is not None:
                position = unquote(parts[1])
                found.append(Snapshot(queue, log, partition, int(parts[2]), position))
        return found

    def load(self, snapshot: Snapshot, read: Callable[[BinaryIO], T]) -> T:
        path = self._path(snapshot)
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            head = file.readline()
            begin, length = file.tell(), os.fstat(file.fileno()).st_size
            if json_or_none(head) != {"format": _FORMAT, **asdict(snapshot)}:
                raise OSError(f"{path}: its header does not fit its name")
            if length < begin + _TRAILER.size:
                raise OSError(f"{path}: it is truncated")
            body = _Checking(file, length - begin - _TRAILER.size)
            buffered = io.BufferedReader(body, _BUFFER_BYTES)
            failed: Exception | None = None
            try:
                state = read(cast("BinaryIO", buffered))
            except OSError:
                raise
            except Exception as error:
                failed = error
            while buffered.read(_BUFFER_BYTES):
                pass
            crc, size = _TRAILER.unpack(file.read(_TRAILER.size))
            if (crc, size) != (body.crc, body.size):
                raise OSError(f"{path}: its checksum is wrong") from failed
            if failed is not None:
                raise OSError(f"{path}: it cannot be loaded: {failed!r}") from failed
            return state

    def prune(self, queue: str, log: str, partition: int, keep: Collection[Snapshot]) -> None:
        kept = set(keep)
        for snapshot in self.found(queue, log, partition):
            if snapshot not in kept:
                self._path(snapshot).unlink(missing_ok=True)

    def _folder(self, queue: str, log: str, partition: int) -> Path:
        return self.directory / quote(queue, "") / quote(log, "") / str(partition)

    def _path(self, snapshot: Snapshot) -> Path:
        name = f"{_quoted(snapshot.position)}_{snapshot.epoch}.snapshot"
        return self._folder(snapshot.queue, snapshot.log, snapshot.partition) / name

    @staticmethod
    def _sweep(folder: Path) -> None:
        """Delete the unfinished files of processes that died."""
        for left in folder.glob(".new-*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                    left.unlink()


def json_or_none(text: bytes) -> Any:
    """The JSON document; None if the text is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


class _Summing(io.RawIOBase):
    """Passes on what is written and computes its checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.crc = 0
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.crc = zlib.crc32(data, self.crc)
        length = memoryview(data).nbytes
        self.size += length
        return length


class _Checking(io.RawIOBase):
    """The next `length` bytes of a file, with their checksum as they are read."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._left = length
        self.crc = 0
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: self._left]
        data = self._file.read(len(view))
        view[: len(data)] = data
        self._left -= len(data)
        self.crc = zlib.crc32(data, self.crc)
        self.size += len(data)
        return len(data)


def _quoted(position: str) -> str:
    return quote(position, "").replace("_", "%5F")
