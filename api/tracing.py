"""Traces of requests: FastAPI makes their spans itself; here is what it is told.

Its traces need a version that the extra `otel` of the server's wheel brings; earlier ones ignore
this. What is traced below a request: `broker.tracing`.
"""

import os
from collections.abc import MutableMapping
from importlib.util import find_spec
from typing import Any, TypedDict

from broker.tracing import api

# The exporter that the extra brings.
EXPORTER = "opentelemetry.exporter.otlp.proto.http"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Telemetry(TypedDict, total=False):
    """Of FastAPI's settings the ones that are set here."""

    metrics: bool
    logs: bool
    operation_spans: bool
    auto_configure: bool
    exclude: Any


def telemetry() -> Any:
    """FastAPI's setting `telemetry`: spans of calls, sent to where the environment says.

    If the process has a tracer provider already (`opentelemetry-instrument` makes one), nothing
    else is sent anywhere.
    """
    wanted = any(os.environ.get(name) for name in ENDPOINTS) and api() is None
    if wanted:
        os.environ.setdefault("OTEL_SERVICE_NAME", "counterpoise")
    return Telemetry(
        metrics=False,  # Prometheus asks for them
        logs=False,
        operation_spans=False,
        auto_configure=wanted and _has_exporter(),
        exclude=_excluded,
    )


def _has_exporter() -> bool:
    try:
        return find_spec(EXPORTER) is not None
    except ModuleNotFoundError:
        return False


def _excluded(scope: MutableMapping[str, Any]) -> bool:
    """Probes, metrics and pages."""
    return not str(scope["path"]).startswith("/v1/")
