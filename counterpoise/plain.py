"""Text that may come from strangers, made fit for a terminal and for Graphviz.

A name, a message or a position may contain control characters: a terminal obeys them (it moves the
cursor, changes its title, or answers as if typed), and a line end in a log looks like another
record. `plain` shows each of them as an escape and leaves everything else, also other scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

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
