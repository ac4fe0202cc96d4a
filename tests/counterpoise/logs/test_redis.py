"""What only a log in Redis has: restarts, refusals, memory, clusters, connections."""

import os
import socket
import socketserver
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Thread

import pytest

from broker.logs.external import open_managed
from counterpoise.logs import (
    MAX_MESSAGE_BYTES,
    AppendBatch,
    AppendResult,
    InvalidMessage,
    LogAccessRefused,
    LogNotFound,
    LogUnavailable,
    Message,
    PositionTrimmed,
    open_log,
)
from counterpoise.logs.redis import log as redis_log
from counterpoise.publisher import Publisher
from tests.counterpoise.log_access import client_of
from tests.log_support import append, texts
from tests.managed_logs import OWNER, made
from tests.redis_server import RedisServer
from tests.service import eventually


@pytest.fixture
def own_server(tmp_path):
    """A server that the test may kill; every append is on disk before it is answered."""
    with RedisServer(tmp_path, appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def log(redis_server, request):
    log = made(redis_server.log(f"redis-{request.node.name[:60]}"), seconds=15)
    yield log
    log.close()


# ------------------------------------------------------------------ restarts


def test_a_server_that_is_killed_and_persists_loses_nothing_and_forgets_no_repetition(own_server):
    log = made(own_server.log("q"))
    assert append(log, "a", "b") == AppendResult(2, 0)
    before = log.bounds([0])
    own_server.kill()
    with pytest.raises(LogUnavailable, match="cannot be reached"):
        append(log, "c", first=2)
    own_server.start()
    # The scripts are gone with the process; they are sent again.
    assert append(log, "a", "b", "c") == AppendResult(1, 2)
    assert texts(log, 0) == ["a", "b", "c"]
    assert log.bounds([0]).incarnation == before.incarnation


def test_an_idle_connection_that_was_cut_is_replaced(log, redis_server):
    append(log, "a")
    with redis_server.client() as admin:
        admin.client_kill_filter(_type="normal", skipme=True)
    assert append(log, "b", first=1) == AppendResult(1, 0)
    reading = log.read(0, "0", None, max_messages=10)
    with redis_server.client() as admin:
        admin.client_kill_filter(_type="normal", skipme=True)
    assert sum(batch.num_rows for batch in reading) == 2


# ------------------------------------------------------------------ refusals


def test_credentials_are_asked_for_and_never_shown(tmp_path):
    with RedisServer(tmp_path, requirepass="right-hunter2") as server:
        for access in (None, f"redis://:wrong-hunter2@{server.address}"):
            log = open_log(server.log("q"), access, timeout_seconds=60)
            with pytest.raises(LogAccessRefused, match="COUNTERPOISE_LOG_URL") as refusal:
                log.bounds([0])
            assert "hunter2" not in str(refusal.value)
        log = made(server.log("q"), f"redis://:right-hunter2@{server.address}")
        append(log, "a")
        assert texts(log, 0) == ["a"]


READER = "+@read +@connection +@transaction +eval +evalsha"
PUBLISHER = f"{READER} +hset +xadd +set +time"
SERVICE = f"{PUBLISHER} +xtrim +unlink +info"


def as_user(server, log, name, rights):
    """The log for a user with just these rights (docs/logs.md, *Rights*)."""
    with server.client() as admin:
        admin.execute_command(
            "ACL", "SETUSER", name, "reset", "on", ">pw", "~counterpoise:*", *rights.split()
        )
    return open_managed(log._log, f"redis://{name}:pw@{server.address}", timeout_seconds=60)


def test_a_read_only_user_can_read_and_not_append(redis_server, log):
    append(log, "a")
    reader = as_user(redis_server, log, "reader", READER)
    assert texts(reader, 0) == ["a"]
    assert reader.bounds([0]).ends == {0: "1"}
    assert reader.limit({0: "0"}, 10, max_bytes=1) == {0: "1"}
    # Without the right to the server's clock by this machine's.
    assert 0 <= reader.ages({0: "0"})[0] < 3600
    with pytest.raises(LogAccessRefused):
        append(reader, "b", first=1)
    assert texts(log, 0) == ["a"]
    reader.close()


def test_publisher_and_service_need_the_rights_that_are_documented(redis_server, log):
    publisher = as_user(redis_server, log, "publisher", PUBLISHER)
    assert append(publisher, "a", "b") == AppendResult(2, 0)
    assert publisher.next_sequence("p") == 2
    service = as_user(redis_server, log, "service", SERVICE)
    assert service.ensure(4, OWNER)
    assert service.set_partition_count(3, 2)
    assert service.discard([3]) == {3}
    assert service.position_at(0.0)[0] == "0"
    service.trim({0: "1"})
    assert texts(log, 0, "1") == ["b"]
    service.drop(OWNER)
    with pytest.raises(LogNotFound):
        service.bounds([0])
    for one in (publisher, service):
        one.close()


def test_a_server_that_is_full_takes_nothing_of_a_batch_and_says_so(tmp_path):
    with RedisServer(tmp_path, maxmemory="3mb") as server:
        log = made(server.log("q"))
        with pytest.raises(LogUnavailable, match="maxmemory"):  # noqa: PT012
            for number in range(100):
                append(log, "x" * 50_000, "y", first=2 * number)
        values = texts(log, 0)
        assert len(values) == int(log.bounds([0]).ends[0]) == log.next_sequence("p")
        assert len(values) % 2 == 0
        log.trim({0: str(len(values))})
        append(log, "x" * 50_000, "y", first=len(values))


def test_a_replica_says_that_it_takes_no_messages(redis_server, tmp_path, log):
    append(log, "a")
    with RedisServer(tmp_path, replicaof=f"127.0.0.1 {redis_server.port}") as replica:
        follower = open_log(replica.log(log.name), timeout_seconds=60)

        def follows():
            try:
                return follower.bounds([0]).ends == {0: "1"}
            except (LogNotFound, LogUnavailable):
                return False

        eventually(follows)
        assert texts(follower, 0) == ["a"]
        with pytest.raises(LogUnavailable, match="replica"):
            append(follower, "b", first=1)


@contextmanager
def answering(*lines):
    """A server that answers every script of its n-th connection with the n-th of these lines, the
    last one if there are more connections, and all else with OK.
    """
    left = [*lines]

    class Answer(socketserver.StreamRequestHandler):
        def handle(self):
            line = left.pop(0) if len(left) > 1 else left[0]
            while head := self.rfile.readline():
                words = []
                for _ in range(int(head[1:])):
                    words.append(self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2])
                self.wfile.write(line if words[0].startswith(b"EVAL") else b"+OK\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"redis://127.0.0.1:{server.server_address[1]}/0/q"
        finally:
            server.shutdown()
            thread.join()


# From Redis 7 on the code comes first inside scripts too, and the client removes it.
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'. script: 9a41.", "maxmemory"),
        ("READONLY You can't write against a read only replica. script: 9a41.", "replica"),
        ("CLUSTERDOWN The cluster is down", "cluster is down"),
        ("CLUSTERDOWN Hash slot not served", "cluster is down"),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'.", "primary"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "moves the log's slot"),
        ("ASK 3999 127.0.0.1:6381", "moves the log's slot"),
        ("MISCONF Redis is configured to save RDB snapshots, but it's unable to.", "persist"),
        ("NOREPLICAS Not enough good replicas to write.", "replicas"),
        ("LOADING Redis is loading the dataset in memory", "loading"),
        ("BUSY Redis is busy running a script.", "busy"),
        ("ERR max number of clients reached", "maxclients"),
    ],
)
def test_transient_errors_are_unavailable_errors(line, why):
    with answering(f"-{line}\r\n".encode()) as url:
        log = open_log(url, timeout_seconds=60)
        with pytest.raises(LogUnavailable, match=why):
            append(log, "a")
        log.close()


def test_after_a_failover_the_address_is_connected_to_anew():
    """The server that was the primary lives, and the address leads to another one by now."""
    with answering(b"-READONLY You can't write.\r\n", b"*2\r\n$2\r\nok\r\n:1\r\n") as url:
        log = open_log(url, timeout_seconds=60)
        with pytest.raises(LogUnavailable, match="replica"):
            append(log, "a")
        assert append(log, "a") == AppendResult(1, 0)
        log.close()


def test_a_server_that_says_nothing_does_not_hold_a_call_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        log = open_log(
            f"redis://127.0.0.1:{port}/0/q", "redis://:hunter2@127.0.0.1", timeout_seconds=0.3
        )
        assert "hunter2" not in repr(log)
        access = f"redis://:hunter2@127.0.0.1:{port}"
        log = open_log(f"redis://127.0.0.1:{port}/0/q", access, timeout_seconds=0.3)
        with pytest.raises(LogUnavailable) as refusal:
            log.bounds([0])
        assert "hunter2" not in str(refusal.value)


# ------------------------------------------------------------------ inside


def test_publishers_are_forgotten_after_days_only(log, redis_server):
    append(log, "a")
    with redis_server.client() as admin:
        left = admin.ttl(f"counterpoise:{{{log.name}}}:publisher:p")
    assert left > 20 * 24 * 3600


def test_the_largest_message_fits(log):
    value = bytes(MAX_MESSAGE_BYTES)
    log.append(AppendBatch("p", 0, 4, [0, 0], [Message(value), Message(b"after")]))
    batches = list(log.read(0, "0", None, max_messages=10))
    assert [batch.num_rows for batch in batches] == [1, 1]
    assert batches[0]["value"][0].as_py() == value


# ------------------------------------------------------------------ limits of the server


@pytest.fixture
def narrow(tmp_path):
    """A server that takes no argument above 1 MiB, and cuts answers above 200 KB."""
    limits = {
        "proto_max_bulk_len": "1mb",
        "client_output_buffer_limit": "normal 200kb 0 0",
    }
    with RedisServer(tmp_path, **limits) as server:
        yield server


LARGE = 2 * 1024 * 1024


def test_a_message_that_the_server_never_takes_is_refused_as_such(narrow):
    log = made(narrow.log("q"))
    for number, message in enumerate(
        (
            Message(bytes(LARGE)),
            Message(b"", "k" * LARGE),
            Message(b"", None, {"h": "ä" * (LARGE // 2)}),
        )
    ):
        with pytest.raises(InvalidMessage, match=r"its proto-max-bulk-len is less"):
            log.append(AppendBatch("p", 0, 4, [0, 0], [Message(b"before"), message]))
        # As large as it may be.
        log.append(AppendBatch(f"p{number}", 0, 4, [1], [Message(bytes(1024 * 1024))]))
    assert log.bounds([0]).ends == {0: "0"}
    log.close()
    narrow.kill()
    # A server that is away refuses nothing.
    with pytest.raises(LogUnavailable):
        log.append(AppendBatch("p", 0, 4, [0], [Message(bytes(LARGE))]))


def test_what_comes_after_a_refused_message_takes_another_connection():
    """The server closes the connection behind its refusal, and perhaps later than we go on."""
    refusal = b"-ERR Protocol error: invalid bulk length\r\n"
    with answering(refusal, b"*2\r\n$2\r\nok\r\n:1\r\n") as url:
        log = open_log(url, timeout_seconds=60)
        with pytest.raises(InvalidMessage, match="proto-max-bulk-len"):
            append(log, "a")
        assert append(log, "b") == AppendResult(1, 0)
        log.close()


def test_a_publisher_goes_on_without_it(narrow):
    log = made(narrow.log("q"))
    with Publisher("q", client=client_of(narrow.log("q"), 4)) as publisher:
        for number in range(20):
            publisher.publish(bytes(LARGE) if number == 7 else b"%d" % number, "k")
        with pytest.raises(InvalidMessage) as refusal:
            publisher.flush()
    assert refusal.value.__notes__ == [
        "it is message 8 of this publisher to q, which goes on without it"
    ]
    (found,) = [found for partition in range(4) if (found := texts(log, partition))]
    assert found == [str(number) for number in range(20) if number != 7]
    log.close()


@pytest.mark.long
def test_reads_shrink_until_the_server_answers_them(narrow):
    log = made(narrow.log("q"))
    rows = [Message(b"%d" % n * 100, f"k{n}", {"h": "x" * n}) for n in range(3000)]
    large = [Message(b"v" * 900_000, "k" * 500_000, {"h": "ä" * 200_000}), Message(b"after")]
    for first in range(0, 3000, 500):
        some = rows[first : first + 500]
        log.append(AppendBatch("p", first, 4, [0] * 500, some))
    log.append(AppendBatch("p", 3000, 4, [0, 0], large))
    for _ in range(2):
        batches = list(log.read(0, "0", None, max_messages=10_000))
        found = [row for batch in batches for row in batch.to_pylist()]
        assert [int(row["position"]) for row in found] == [*range(3002)]
        assert [
            (row["value"], row["key"], dict(row["headers"] or ()) or None) for row in found
        ] == [(one.value, one.key, one.headers or None) for one in [*rows, *large]]
    # Mostly as much as fits.
    assert len(batches) < 150
    log.close()


@pytest.mark.long
def test_so_do_questions_about_many_partitions(narrow):
    log = made(narrow.log("q"), count=20_000)
    log.append(AppendBatch("p", 0, 20_000, [*range(20_000)], [Message(b"v")] * 20_000))
    bounds = log.bounds([*range(20_000), 30_000])
    assert {*bounds.ends.values()} == {"0", "1"}
    assert (bounds.ends[30_000], bounds.partition_count) == ("0", 20_000)
    log.close()


def test_a_limit_that_nothing_fits_is_named(narrow, monkeypatch):
    monkeypatch.setattr(redis_log, "LEAST_BYTES", 1024 * 1024)
    log = made(narrow.log("q"))
    log.append(AppendBatch("p", 0, 4, [0], [Message(b"v" * 900_000)]))
    with pytest.raises(LogUnavailable) as cut:
        list(log.read(0, "0", None, max_messages=1))
    assert "client-output-buffer-limit" in cut.value.__notes__[0]
    log.close()


# ------------------------------------------------------------------ what is missing


def test_a_message_that_is_missing_without_a_reason_is_an_error(log, redis_server, monkeypatch):
    monkeypatch.setattr(redis_log, "CHUNK_MESSAGES", 1)
    append(log, "a", "b", "c")
    with redis_server.client() as admin:
        admin.xdel(f"counterpoise:{{{log.name}}}:stream:0", "1-2")
    reading = log.read(0, "0", None, max_messages=10)
    assert next(reading)["value"].to_pylist() == [b"a"]
    with pytest.raises(PositionTrimmed, match="cannot be read from 1"):
        next(reading)


def test_a_limit_of_bytes_is_passed_by_less_than_a_message(log):
    for partition in range(3):
        append(log, *["x" * 100] * 50, partition=partition, publisher=f"p{partition}")
    starts = dict.fromkeys(range(4), "0")
    for most in (1, 99, 100, 1000, 1050, 7777, 10**9):
        ends = log.limit(starts, 1000, max_bytes=most)
        size = sum(100 * int(end) for end in ends.values())
        assert min(most, 15000) <= size < most + 100
        assert max(map(int, ends.values())) - min(int(ends[p]) for p in range(3)) <= 1


def test_a_forked_child_uses_connections_of_its_own(log):
    append(log, "a")
    child = os.fork()
    if child == 0:
        os._exit(0 if texts(log, 0) == ["a"] else 1)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(texts, log, 0).result(240) == ["a"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def settled(node):
    """Whether a node of a cluster knows the owners of all slots."""
    return b"cluster_state:ok" in node.execute_command("CLUSTER", "INFO")


@pytest.mark.long
def test_in_a_cluster_the_log_is_found_on_its_node(tmp_path):
    with ExitStack() as stack:
        nodes = []
        for name in ("a", "b"):
            directory = tmp_path / name
            directory.mkdir()
            server = RedisServer(
                directory, cluster_enabled="yes", cluster_config_file=f"{name}.conf"
            )
            nodes.append(stack.enter_context(server))
        clients = [stack.enter_context(node.client()) for node in nodes]
        clients[0].execute_command("CLUSTER", "ADDSLOTS", *range(8192))
        clients[1].execute_command("CLUSTER", "ADDSLOTS", *range(8192, 16384))
        clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
        for one in clients:
            eventually(partial(settled, one))
        for name in ("q", "r", "s", "t"):
            # All are asked through the first node; about half are on the second.
            log = made(nodes[0].log(name))
            append(log, "a", "b")
            assert texts(log, 0) == ["a", "b"]
            assert log.bounds([0, 1]).ends == {0: "2", 1: "0"}
            log.close()
        sizes = [one.dbsize() for one in clients]
        assert all(sizes), sizes
