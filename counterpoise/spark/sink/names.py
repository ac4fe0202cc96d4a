"""The names of sinks: in one micro-batch each is used once.

Two sinks of one name would each mistake the other's work for its own: the second would find
everything written, and its own rows would be missing.
"""

from __future__ import annotations

import threading
import weakref

from counterpoise.spark.errors import SinkNameInUse

# By kind of sink, name, target and run: the last micro-batch, and the sink that got it.
_given: dict[tuple[type[object], str, str, str], tuple[int, weakref.ref[object]]] = {}
_given_lock = threading.Lock()


def check_unused(
    sink: object, name: str, target: str, run_id: str, batch_id: int, *, where: str = ""
) -> None:
    """Raises SinkNameInUse if another sink of this name and target got the micro-batch; `where`
    says which target.
    """
    key = (type(sink), name, target, run_id)
    with _given_lock:
        before = _given.get(key)
        other = before[1]() if before is not None and before[0] == batch_id else None
        if other is not None and other is not sink:
            raise SinkNameInUse(
                f"two sinks named {name!r} were given the same micro-batch{where}: the second "
                "would find everything written. Give each a name of its own"
            )
        _given[key] = (batch_id, weakref.ref(sink))
