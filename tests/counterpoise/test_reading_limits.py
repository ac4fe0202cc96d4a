"""What a server may send at most; and what may stand in a token."""

import asyncio
import json
import traceback
from functools import partial
from typing import Any

import pytest

from counterpoise.calls import queues, read_answer
from counterpoise.client import AsyncClient, Client
from counterpoise.errors import BadAnswer, Invalid, InvalidSettings, Unreachable
from counterpoise.flow import Flow
from counterpoise.reading import Listed, json_of
from counterpoise.wire import Event, Page
from tests.counterpoise.faulty import Answer, Stall, asking, faulty_service, problem


@pytest.fixture
def faulty():
    with faulty_service() as service:
        yield service


@pytest.fixture(params=["blocking", "asyncio"])
def ask(request):
    """`ask(url)` lists queues, with the one client or the other."""
    return asking(request.param, "queues")


@pytest.fixture(params=["blocking", "asyncio"])
def listen(request):
    """`listen(url)` reads all events of a queue, until the service ends them."""

    def blocking(url, heard):
        with Client(url) as client:
            heard.extend(client.events("flights"))

    async def with_asyncio(url, heard):
        async with AsyncClient(url) as client:
            async for event in client.events("flights"):
                heard.append(event)

    def listening(url):
        heard: list[Event] = []
        if request.param == "blocking":
            end = partial(blocking, url, heard)
        else:
            end = partial(asyncio.run, with_asyncio(url, heard))
        with pytest.raises(Unreachable, match="ended the events"):
            end()
        return heard

    return listening


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [33, 900, 100_000])
def test_json_that_nests_deeply_is_refused(opening, depth):
    closing = "]" if opening == "[" else "}"
    with pytest.raises(ValueError, match="nests more than 32 deep"):
        json_of(opening * depth + "1" * (opening != "[") + closing * depth)


def test_json_of_many_brackets_is_read_when_it_is_shallow():
    assert json_of("[" + ",".join(["[[]]"] * 100) + "]") == [[[]]] * 100
    assert json_of(b"[" * 32 + b"]" * 32) is not None


def test_a_listing_that_goes_in_a_circle_or_does_not_end_is_given_up(monkeypatch):
    listed: Listed[int] = Listed(None)
    assert listed.add(Page((1,), "a"))
    assert listed.add(Page((2,), "b"))
    with pytest.raises(BadAnswer, match="circle"):
        listed.add(Page((3,), "a"))
    monkeypatch.setattr("counterpoise.reading.MOST_PAGES", 3)
    listed = Listed(None)
    assert listed.add(Page((), "1"))
    assert listed.add(Page((), "2"))
    with pytest.raises(BadAnswer, match="does not end"):
        listed.add(Page((), "3"))
    monkeypatch.setattr("counterpoise.reading.MOST_LISTED", 3)
    with pytest.raises(BadAnswer, match="does not end"):
        Listed[int](None).add(Page((1, 2, 3, 4), "a"))


@pytest.mark.parametrize("cursor", [7, "", "c" * 2_001, ["a"]])
def test_a_cursor_that_is_none_is_a_bad_answer(cursor):
    page = queues().page(None)
    with pytest.raises(BadAnswer, match="cursor"):
        read_answer(page, 200, {}, json.dumps({"items": [], "next_cursor": cursor}).encode())


# ------------------------------------------------------------------ on the wire

EMPTY: dict[str, Any] = {"items": [], "next_cursor": None}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(200, text=" " * 2_000 + json.dumps(EMPTY)), "longer than 1000 bytes"),
        (Answer(200, EMPTY, {"Content-Encoding": "gzip"}), "compressed"),
        (Answer(200, text="[" * 400 + "]" * 400), "not JSON"),
        (Answer(200, {"items": [], "next_cursor": "always the same"}), "circle"),
    ],
)
def test_what_exceeds_a_limit_is_a_bad_answer(faulty, ask, monkeypatch, answer, says):
    monkeypatch.setattr("counterpoise.reading.MOST_ANSWER_BYTES", 1_000)
    faulty.script = lambda _: answer
    with pytest.raises(BadAnswer, match=says):
        ask(faulty.url)


def test_an_answer_that_does_not_say_its_length_is_cut_off(faulty, ask, monkeypatch):
    """Not after it has ended: it might never."""
    monkeypatch.setattr("counterpoise.reading.MOST_ANSWER_BYTES", 1_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    faulty.script = lambda _: Stall(first=head, drip=b" " * 100)
    with pytest.raises(BadAnswer, match="longer than 1000 bytes"):
        ask(faulty.url)


def test_a_refusal_of_a_stream_is_bounded_too(faulty, listen, monkeypatch):
    monkeypatch.setattr("counterpoise.reading.MOST_ANSWER_BYTES", 1_000)
    faulty.script = lambda _: Answer(404, text="x" * 2_000)
    with pytest.raises(BadAnswer, match="longer than 1000 bytes"):
        listen(faulty.url)


def test_a_name_with_a_line_separator_breaks_nobodys_events(faulty, listen):
    data = '{"client_name": "a\u2028b\x85c"}'
    faulty.script = lambda _: Answer(
        200, headers={"Content-Type": "text/event-stream"}, text=f"id: 3\ndata: {data}\n\n"
    )
    (event,) = listen(faulty.url)
    assert event.data == {"client_name": "a\u2028b\x85c"}


def test_a_long_message_of_a_refusal_is_cut(faulty, ask):
    faulty.script = lambda _: problem(422, "invalid", detail="x" * 100_000)
    with pytest.raises(Invalid) as refused:
        ask(faulty.url)
    assert len(str(refused.value)) < 5_000


# ------------------------------------------------------------------ tokens

SECRET = "s3cr3t"


@pytest.mark.parametrize("made", [Client, AsyncClient])
@pytest.mark.parametrize(
    "token", [f"{SECRET}\nX-Other: 1", f"{SECRET} x", f"{SECRET}\u00e4", f"{SECRET}\1"]
)
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(made, token, monkeypatch):
    with pytest.raises(InvalidSettings) as refused:
        made(token=token)
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    monkeypatch.setenv("COUNTERPOISE_TOKEN", token)
    with pytest.raises(InvalidSettings) as refused:
        Flow("flights").open()
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_the_token_of_a_call_is_looked_at_too(faulty):
    with Client(faulty.url) as client, pytest.raises(InvalidSettings) as refused:
        client.heartbeat("flights", "f1", f"{SECRET}\n{SECRET}")
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_a_token_from_a_file_may_end_with_its_line(faulty, ask, monkeypatch):
    heard: list[Any] = []
    faulty.heard = heard.append
    monkeypatch.setenv("COUNTERPOISE_TOKEN", f" {SECRET}\r\n")
    faulty.script = lambda _: Answer(200, EMPTY)
    assert ask(faulty.url) == []
    assert [one.get("Authorization") for one in heard] == [f"Bearer {SECRET}"]


def test_a_flow_token_that_no_header_can_carry_is_a_bad_answer(faulty):
    body = {"flow_id": "f", "flow_token": f"{SECRET}\n", "lease_seconds": 3.0, "log": "builtin:q"}
    body |= {"queue_id": "q", "log_access": None, "update": faulty.update()}
    faulty.script = lambda seen: Answer(201, body)
    with Client(faulty.url) as client, pytest.raises(BadAnswer) as refused:
        client.bind("flights", "me")
    assert SECRET not in "".join(traceback.format_exception(refused.value))
