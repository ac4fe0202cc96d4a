"""The start and the end of a batch read: the options startingPositions and endingPositions.

An *edge* is a word, or positions of the partitions to read. So JSON names both the partitions and
the positions; partitions that it does not name are left out.

| edge | start | end |
|---|---|---|
| `earliest` | the first message that the log still has | |
| `latest` | | the end of the log when the read is planned |
| `committed` | the committed position: what is unprocessed | the same: what is processed |
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from counterpoise.spark.errors import InvalidOption

Edge = str | Mapping[int, str]

_START_WORDS = ("earliest", "committed")
_END_WORDS = ("latest", "committed")


def starting_edge(text: str | None) -> Edge:
    """The option `startingPositions`. Raises InvalidOption."""
    return _edge("startingPositions", text or "earliest", _START_WORDS)


def ending_edge(text: str | None) -> Edge:
    """The option `endingPositions`. Raises InvalidOption."""
    return _edge("endingPositions", text or "latest", _END_WORDS)


def _edge(name: str, text: str, words: tuple[str, ...]) -> Edge:
    if text.lower() in words:
        return text.lower()
    wanted = f"is {', '.join(words)}, or JSON that names the partitions to read"
    example = f'{{"0": "12", "1": "{words[0]}"}}'
    refusal = InvalidOption(f"the option {name!r} {wanted} ({example}), not {text!r}")
    try:
        document = json.loads(text, object_pairs_hook=_without_repetition)
    except ValueError as error:
        raise refusal from error
    if not isinstance(document, dict) or not document:
        raise refusal
    positions: dict[int, str] = {}
    for key, value in document.items():
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise refusal
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise refusal
        word = str(value).strip().lower()
        if word in {"earliest", "latest", "committed"} - set(words):
            raise refusal
        positions[int(key)] = word if word in words else str(value).strip()
    return positions


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a partition is named twice")
    return document


def is_word(edge: Edge, number: int) -> bool:
    """Whether the edge of this partition is a word."""
    return isinstance(edge, str) or edge[number] in (*_START_WORDS, *_END_WORDS)
