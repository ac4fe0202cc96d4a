"""Events are read as the HTML standard says, whatever a server sends."""

import json

import pytest

from counterpoise.errors import BadAnswer
from counterpoise.event_stream import EventReader

STREAM = b": hello\n\nevent: change\nid: 7\ndata: {\ndata: }\n\ndata: 1\n\nid: 9\n\n"


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_events_are_read_in_whatever_pieces_they_come(ending, size):
    reader = EventReader()
    stream = b"\xef\xbb\xbf" + STREAM.replace(b"\n", ending)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    events = [event for piece in pieces for event in reader.feed(piece)]
    assert [(one.revision, one.name, one.data) for one in events] == [
        (7, "change", {}),
        (7, "message", 1),
    ]


def test_nothing_but_cr_and_lf_ends_a_line():
    """`str.splitlines` would cut a name in two, and the event would not be JSON any more."""
    name = "a\u2028b\u2029c\x85d"
    data = json.dumps({"client_name": name}, ensure_ascii=False)
    (event,) = EventReader().feed(f"data: {data}\n\n".encode())
    assert event.data == {"client_name": name}


@pytest.mark.parametrize(
    "stream",
    [
        b"data: {\n\n",
        b"data: NaN\n\n",
        b"data: \xff\n\n",
        b"data: " + b"[" * 100_000 + b"]" * 100_000 + b"\n\n",
    ],
)
def test_an_event_that_is_not_json_is_a_bad_answer(stream):
    with pytest.raises(BadAnswer):
        list(EventReader().feed(stream))


@pytest.mark.parametrize("id", ["-1", "7.5", "\u00b2", "9" * 5_000])
def test_an_id_that_is_no_revision_is_none(id):
    (event,) = EventReader().feed(f"id: {id}\ndata: 1\n\n".encode())
    assert event.revision is None


@pytest.mark.parametrize("piece", [b"data: x\n", b"x"])
def test_an_event_that_never_ends_is_a_bad_answer(monkeypatch, piece):
    monkeypatch.setattr("counterpoise.event_stream.MOST_ANSWER_BYTES", 1000)
    reader = EventReader()

    def read_on():
        for _ in range(1001):
            list(reader.feed(piece))

    with pytest.raises(BadAnswer, match="longer than 1000 bytes"):
        read_on()
