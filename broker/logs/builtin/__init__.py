"""The built-in logs: the kind of log in Postgres, in the service's database or another."""

from broker.logs.builtin.logs import SWEEP_MESSAGES, BuiltinLogs

__all__ = ["SWEEP_MESSAGES", "BuiltinLogs"]
