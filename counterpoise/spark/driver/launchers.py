"""Small programs that Counterpoise writes for Spark to run: a `java` and a `python`."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_dir() -> Path:
    """The user's cache directory: `counterpoise` in $XDG_CACHE_HOME, else in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is invalid and ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "counterpoise"


def written(name: str, text: str) -> Iterator[Path]:
    """Where the program `name` was written: a path that ends with `bin/` and the name.

    First in the user's cache directory, and if that one does not do, in one for temporary files.
    The directory is named after the text, so that several environments of one user have one each.
    """
    version = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    for parent in (cache_dir(), Path(tempfile.gettempdir(), f"counterpoise-{os.getuid()}")):
        with contextlib.suppress(OSError):
            program = parent / version / "bin" / name
            write_program(program, text)
            yield program


def write_program(path: Path, text: str) -> None:
    """Write `text` to an executable file, atomically for processes that run it meanwhile.

    Raises OSError, also if another user can write to the directory, because its files will be run.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.parent.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{path.parent} belongs to somebody else")
    with contextlib.suppress(FileNotFoundError):
        if path.read_text("utf-8") == text and os.access(path, os.X_OK):
            return
    descriptor, unfinished = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
