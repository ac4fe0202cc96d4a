"""No control character of a stranger reaches a terminal."""

import json

import pytest

from counterpoise.plain import plain, plain_json, plain_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("a\rb\x08\x7f", r"a\x0db\x08\x7f"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("a\u2028b", r"a\u2028b"),
        ("\ud800", r"\ud800"),
        ("café 数 \U0001f600 \\x1b", "café 数 \U0001f600 \\x1b"),
    ],
)
def test_control_characters_are_shown_as_escapes_and_nothing_else(text, shown):
    assert plain(text) == plain_line(text) == shown
    shown.encode()


def test_tabs_and_line_ends_stay_where_there_may_be_lines():
    assert plain("a\tb\n") == "a\tb\n"
    assert plain_line("a\tb\n") == r"a\x09b\x0a"


def test_json_stays_the_same_document():
    document = {"name": "\x1b[2J\x9b\u202e\u2028\x7f é\n"}
    text = plain_json(json.dumps(document, indent=2, ensure_ascii=False))
    assert json.loads(text) == document
    assert plain(text) == text
