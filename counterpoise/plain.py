"""Text that may come from strangers, made fit for a terminal and for Graphviz.

A name, a message or a position may contain control characters: a terminal obeys them (it moves the
cursor, changes its title, or answers as if typed), and a line end in a log looks like another
record. `plain` shows each of them as an escape and leaves everything else, also other scripts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

DECEPTIVE = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
"""Besides the controls of ASCII: what ends a line or turns the direction of writing."""
# And what cannot be encoded.
_OTHERS = rf"{DECEPTIVE}\ud800-\udfff"
_PLAIN = rf"[\x00-\x08\x0b-\x1f{_OTHERS}]"
_ONE_LINE = rf"[\x00-\x1f{_OTHERS}]"
_JSON = rf"[\x00-\x09\x0b-\x1f{_OTHERS}]"


def plain(text: str) -> str:
    """The text with escapes in place of control characters; tabs and line ends stay."""
    return re.sub(_PLAIN, _escape, text)


def plain_line(text: str) -> str:
    """As `plain`, with escapes for tabs and line ends too."""
    return re.sub(_ONE_LINE, _escape, text)


def plain_json(text: str) -> str:
    """The same JSON; control characters in its strings are JSON's escapes."""
    return re.sub(_JSON, lambda one: f"\\u{ord(one[0]):04x}", text)


def _escape(one: re.Match[str]) -> str:
    code = ord(one[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class Node(Protocol):
    """A partition in the graph of a dynamic queue."""

    @property
    def partition(self) -> int: ...
    @property
    def key(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def parents(self) -> Sequence[str]: ...


def dot(queue: str, nodes: Sequence[Node]) -> str:
    """The graph in DOT, the language of Graphviz: each partition points to those that follow it.

    Parents that are not among the nodes are dashed.
    """
    lines = [f"digraph {_quoted(queue)} {{", "  rankdir=LR;", "  node [shape=box];"]
    keys = {node.key for node in nodes}
    for node in nodes:
        label = f"{node.partition}: {node.key}\n{node.state}"
        lines.append(f"  {_quoted(node.key)} [label={_quoted(label)}];")
    gone = sorted({key for node in nodes for key in node.parents if key not in keys})
    lines += [f"  {_quoted(key)} [style=dashed];" for key in gone]
    for node in nodes:
        lines += [f"  {_quoted(key)} -> {_quoted(node.key)};" for key in node.parents]
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
