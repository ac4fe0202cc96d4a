"""The logs of all queues: each call goes to the kind of log, and errors become answers."""

from broker.logs.by_kind.logs import LogsByKind

__all__ = ["LogsByKind"]
