"""Chunked bodies of more than body: trailers, extensions, chunks of one byte."""

import contextlib
import json
from collections.abc import Iterator

import pytest

from api.connections import CHUNK_BYTES, MOST_BODY_OVERHEAD_BYTES
from tests.attacks.bystander import Bystander
from tests.attacks.holding import MOST_YARDSTICKS, as_in_a_process_of_its_own, hold_each_time
from tests.attacks.wire import Answer, Wire
from tests.service import Service

pytestmark = pytest.mark.long

HEAD = (
    b"POST /v1/queues HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
BODY = json.dumps({"name": "q", "partition_count": 0}).encode()
# What an attacker may send before somebody ends it.
ENOUGH_BYTES = 2**24


def chunked(body: bytes, size: int, extension: bytes = b"") -> bytes:
    """The body in chunks of so many bytes, without the last one, which is empty."""
    parts = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)


def sent(wire: Wire, pieces: Iterator[bytes]) -> int:
    """How many bytes the service took before it ended the connection."""
    count = 0
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            wire.send(piece)
            count += len(piece)
            if count > ENOUGH_BYTES:
                break
    return count


def endless(piece: bytes) -> Iterator[bytes]:
    while True:
        yield piece


ATTACKS = {
    "fields after the body": (chunked(BODY, 64) + b"0\r\n", b"a:b\r\n" * 10_000),
    "a field without end after the body": (chunked(BODY, 64) + b"0\r\na:", b"b" * 50_000),
    "an extension without end": (b"1;a=", b"b" * 50_000),
    "chunks of one byte": (b"", chunked(b" " * 10_000, 1)),
    "chunks with extensions": (b"", chunked(b" " * 500, 1, b";a=" + b"b" * 100)),
    "empty lines of a chunk's length": (b"", chunked(b" " * 500, 1, b" " * 100)),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_body_that_is_mostly_no_body_is_ended(
    target: Service, bystander: Bystander, attack: str
) -> None:
    first, again = ATTACKS[attack]
    with Wire(target.url) as wire:
        wire.send(HEAD + first)
        assert sent(wire, endless(again)) < ENOUGH_BYTES


@pytest.mark.matrix("attack")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_body_that_is_mostly_no_body_holds_nobody(target: Service, attack: str) -> None:
    first, again = ATTACKS[attack]

    def request() -> None:
        with Wire(target.url) as wire, contextlib.suppress(ConnectionError):
            wire.send(HEAD + first + again * 40)
            wire.answer()

    with as_in_a_process_of_its_own():
        assert hold_each_time(target, request) < MOST_YARDSTICKS


def answer_of(target: Service, body: bytes) -> Answer:
    with Wire(target.url) as wire:
        wire.send(HEAD + body)
        answer = wire.answer()
        assert answer is not None
        return answer


def test_fields_after_a_body_are_dropped(target: Service) -> None:
    """A proxy in front has not seen them; a wrong credential there refuses nothing."""
    fields = b"authorization: Bearer cp_none\r\nx-forwarded-for: 127.0.0.9\r\n"
    assert answer_of(target, chunked(BODY, 64) + b"0\r\n" + fields + b"\r\n").status == 422


def test_fields_after_a_body_grant_nothing(target: Service) -> None:
    """A flow's token after the body is none."""
    with target.http as http:
        http.post("/queues", json={"name": "trailing", "partition_count": 1}).raise_for_status()
        bound = http.post("/queues/trailing/flows", json={"client_name": "c"}).json()
        path = f"/v1/queues/trailing/flows/{bound['flow_id']}/commit"
    head = HEAD.replace(b"/v1/queues", path.encode(), 1)
    with Wire(target.url) as wire:
        token = f"authorization: Bearer {bound['flow_token']}\r\n\r\n".encode()
        wire.send(head + chunked(b'{"partitions":[]}', 64) + b"0\r\n" + token)
        answer = wire.answer()
        assert answer is not None
        assert answer.status == 401


def test_a_body_in_chunks_as_clients_send_them_is_read(target: Service) -> None:
    """Few small chunks, or many of a usual size."""
    assert answer_of(target, chunked(BODY, 1) + b"0\r\n\r\n").status == 422
    large = BODY + b" " * 60_000
    assert answer_of(target, chunked(large, CHUNK_BYTES) + b"0\r\n\r\n").status == 422
    assert len(large) // CHUNK_BYTES * 8 < MOST_BODY_OVERHEAD_BYTES
