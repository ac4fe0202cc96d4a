"""Text that may come from strangers, made fit for a terminal.

A name, a message or a position may contain control characters: a terminal obeys them (it moves the
cursor, changes its title, or answers as if typed), and a line end in a log looks like another
record. `plain` shows each of them as an escape and leaves everything else, also other scripts.
"""

from __future__ import annotations

from collections.abc import Mapping

# Besides the controls: what ends a line, turns the direction of writing, or cannot be encoded.
_OTHERS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)


def _escapes(kept: str) -> Mapping[int, str]:
    controls = (*range(0x20), *range(0x7F, 0xA0))
    table = {code: f"\\x{code:02x}" for code in controls}
    table |= {code: f"\\u{code:04x}" for code in (*_OTHERS, *range(0xD800, 0xE000))}
    return {code: escape for code, escape in table.items() if chr(code) not in kept}


_PLAIN = _escapes("\t\n")
_ONE_LINE = _escapes("")
_JSON = {code: f"\\u{code:04x}" for code in _escapes("\n")}


def plain(text: str) -> str:
    """The text with escapes in place of control characters; tabs and line ends stay."""
    return text.translate(_PLAIN)


def plain_line(text: str) -> str:
    """As `plain`, with escapes for tabs and line ends too."""
    return text.translate(_ONE_LINE)


def plain_json(text: str) -> str:
    """The same JSON; control characters in its strings are JSON's escapes."""
    return text.translate(_JSON)
