"""Answers: documents of the API (`counterpoise.wire`) as JSON."""

from __future__ import annotations

from fastapi import Response
from msgspec import Struct
from msgspec.json import Encoder

MEDIA_TYPE = "application/json"
encode = Encoder().encode
"""The bytes of a document."""


def answer(document: Struct, status_code: int = 200) -> Response:
    """The document as an answer."""
    return Response(encode(document), status_code, media_type=MEDIA_TYPE)
