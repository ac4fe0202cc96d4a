"""The names of sinks: in one micro-batch each is used once.

Two sinks of one name would each mistake the other's work for its own: the second would find
everything written, and its own rows would be missing. So would those of a second part of the rows
that goes through the same sink.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from counterpoise.spark.errors import InvalidSink

# By kind of sink, name, target and run: the last micro-batch that is being written, or was. A query
# that starts again is another run, so its last micro-batch may come once more.
_given: dict[tuple[type[object], str, str, str], int] = {}
_given_lock = threading.Lock()


@contextlib.contextmanager
def used_once(
    kind: type[object], name: str, target: str, run_id: str, batch_id: int, *, where: str = ""
) -> Iterator[None]:
    """Within, the micro-batch is written under this name. After an error that may be tried again.

    Raises InvalidSink if it was written already, or is just being written; `where` says to which
    target.
    """
    key = (kind, name, target, run_id)
    with _given_lock:
        if _given.get(key) == batch_id:
            raise InvalidSink(
                f"two sinks named {name!r}, or one sink twice, were given the same micro-batch"
                f"{where}: the second would find everything written. Give each part of the rows a "
                "sink with a name of its own"
            )
        _given[key] = batch_id
    try:
        yield
    except BaseException:
        with _given_lock:
            _given.pop(key, None)
        raise
