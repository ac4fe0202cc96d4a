"""The service's logging: structured, to stderr, as text on a terminal and JSON elsewhere.

Callers choose some of what is logged. No control character of theirs reaches a terminal.
"""

import io
import logging
import sys
from typing import Literal, TextIO

import structlog

from counterpoise.plain import plain, plain_line

# Libraries whose info messages do not interest operators.
_QUIET = ("uvicorn", "uvicorn.error", "apscheduler", "alembic", "asyncio")

# One list for good: a logger that was used keeps the list that it has found.
_PROCESSORS: list[structlog.typing.Processor] = []


def configure_logging(level: str, style: Literal["auto", "text", "json"] = "auto") -> None:
    """Send structlog's and the standard library's records through one formatter."""
    as_text = sys.stderr.isatty() if style == "auto" else style == "text"
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor]
    if as_text:
        last = [
            _plain,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=_plain_traceback
            ),
        ]
    else:
        # Local variables contain tokens and passwords.
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        last = [
            structlog.processors.ExceptionRenderer(tracebacks),
            structlog.processors.JSONRenderer(),
        ]
    _PROCESSORS[:] = [
        structlog.stdlib.filter_by_level,
        *shared,
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ]
    structlog.configure(
        processors=_PROCESSORS,
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(logging.WARNING, root.level) if level != "debug" else logging.DEBUG)
    # Requests are counted (api.metrics), not logged one by one.
    logging.getLogger("uvicorn.access").disabled = True


def _plain(
    _logger: object, _method: str, record: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Before colours are added, which are control characters too."""
    for name, value in record.items():
        if isinstance(value, str):
            record[name] = plain_line(value)
    return record


def _plain_traceback(stream: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    written = io.StringIO()
    structlog.dev.plain_traceback(written, exc_info)
    stream.write(plain(written.getvalue()))
