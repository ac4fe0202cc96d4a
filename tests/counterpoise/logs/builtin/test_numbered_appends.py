"""Appends with a sequence for each message (migrations/log/sql/append.sql)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest

from counterpoise.logs import AppendBatch, AppendResult, Message, StaleRouting
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.logs.ranges import equal_ranges
from tests.log_support import texts, with_logs

OPEN_APPEND = """SELECT counterpoise_log.append_numbered(
    'flights', 4, 'p', {sequences}::bigint[], '{{0,0}}', '{{a,b}}', NULL, NULL, NULL)"""


def numbered(sequences: Sequence[int], partitions: Sequence[int], **routed: Any) -> AppendBatch:
    """Their values are their sequences, and so are their keys."""
    messages = [Message(b"%d" % one, str(one)) for one in sequences]
    return AppendBatch("p", sequences[0], 4, partitions, messages, sequences=sequences, **routed)


@pytest.mark.parametrize(
    "sequences",
    [
        "'{1}'",
        "'{1,2,3}'",
        "'{2,1}'",
        "'{-1,0}'",
        "'{null,1}'",
        "'{1,null}'",
        "NULL",
        "'{}'",
        "'{{1},{2}}'",
        "'[0:1]={1,2}'",
    ],
)
def test_the_log_itself_refuses_sequences_that_do_not_fit(
    log: PostgresLog, log_url: str, sequences: str
) -> None:
    with psycopg.connect(log_url) as connection, pytest.raises(psycopg.Error) as refusal:
        connection.execute(OPEN_APPEND.format(sequences=sequences).encode())
    assert refusal.value.sqlstate == "CP003"
    assert texts(log, 0) == []


def test_a_repetition_that_a_split_routes_elsewhere_is_known(log_url: str) -> None:
    keys = {one.partition: one.key for one in equal_ranges(1)}
    with_logs(log_url, lambda logs: logs.ensure("builtin:flights", 1, keys=keys))
    with closing(PostgresLog("flights", log_url)) as log:
        sent = range(10, 30, 2)
        assert log.append(numbered(sent, [0] * 10, by_range=True)) == AppendResult(10, 0)
        with_logs(log_url, lambda logs: logs.ranges.split("builtin:flights", 0, None, None))
        again = range(20, 40, 2)
        with pytest.raises(StaleRouting) as stale:
            log.append(numbered(again, [0] * 10, by_range=True))
        ranges = stale.value.ranges
        assert ranges is not None
        where = [ranges.partition_of(str(one)) for one in again]
        assert log.append(numbered(again, where, by_range=True)) == AppendResult(5, 5)
        assert texts(log, 0) == [str(one) for one in sent]
        assert sorted(texts(log, 1) + texts(log, 2)) == [str(one) for one in range(30, 40, 2)]
