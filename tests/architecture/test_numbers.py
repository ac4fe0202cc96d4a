"""The numbers that the contract names are those of the code.

Tests of what they do use the constants, so a changed constant would fail none of them.
"""

import re

import pytest

from api import bodies, connections, requests, routing
from api.connections import MOST_FIELDS
from api.routes.messages import MOST_MESSAGES
from broker.calls import callers, commit_ages, history, measurements, messages, mirrors
from broker.core import cuts, lineage
from broker.core.commands import Quota
from broker.core.model import MOST_PARTITIONS
from broker.logs import by_kind, hash_ranges, peeking, positions
from broker.replica import bursts, renewals, replica
from broker.service import GONE_SECONDS
from broker.settings import Settings
from broker.store.measurements import KEPT_SECONDS, LEAST_SECONDS, MOST_QUEUES
from counterpoise import wire
from tests.architecture.test_documents import text

WORDS = {2: "second", 5: "five", 10: "ten"}
KIB, MIB = 2**10, 2**20
SAID = [
    f"at most {renewals.GATHER_SECONDS * 1000:g} ms later ({renewals.GATHER_SHARE * 100:g} % of",
    f"while {WORDS[bursts.SEVERAL]} or more arrive",
    f"a bind waits for at most {bursts.GATHER_SECONDS:g} s",
    f"| 1..{MOST_PARTITIONS} | configured count |",
    f'`"partitions": [{{"key": "root"}}]` (at most {wire.MOST_ROOTS:,}) has',
    f"or is more than {lineage.FARTHEST:,} above the highest",
    f"more than {MOST_PARTITIONS:,} partitions that exist",
    f"more than {lineage.MOST_KEYS:,} keys in its life",
    f"at most {requests.MOST_NAMES:,} children and parents in all",
    f"the keys of the last {hash_ranges.SAMPLE_MESSAGES:,} messages",
    f"the log is asked again after {cuts.FIRST_SECONDS:g} s",
    f"then at growing intervals up to {cuts.MOST_SECONDS:g} s",
    f"more than {positions.FAR:,} beyond the end",
    f"has at most {wire.MOST_TEXT_CHARACTERS} characters, none of them one that",
    f"A report names at most {wire.MOST_CONDITIONS:,}.",
    f"the first {history.MOST_CAUSES} in order",
    f"at least for {GONE_SECONDS / 3600:g} h",
    f"may make the `GET` calls of the key, for {callers.SESSION_SECONDS / 3600:g} h",
    f"(0..{routing.LONGEST_WAIT_SECONDS:g} s, capped at half the lease)",
    f"at most {Settings().request_limit_bytes / MIB:g} MiB unless",
    f"every other body {bodies.SMALL_BYTES / KIB:g} KiB",
    f"at most {WORDS[requests.MOST_UNKNOWN]} unknown fields",
    f"head has at most {connections.MOST_HEAD_BYTES / KIB:g} KiB and {MOST_FIELDS} fields",
    f"arrives within {connections.HEAD_SECONDS:g} s",
    f"does not answer within {by_kind.SHOW_SECONDS:g} s",
    f"({Settings().key_moves}) times the number of partitions, at least {Quota(0, 0).least_moves}.",
    f"would name more than {lineage.MOST_PARENTS:,} parents together",
    f"the {WORDS[wire.MOST_WAITED_FOR]} lowest partitions that it waits for",
    f"has at most {wire.MOST_DONE_ABOVE:,} characters, else 422",
    f"`reason` has at most {wire.MOST_REASON} characters",
    f"up to {mirrors.LONGEST_PAUSE_SECONDS:g} s. From the {WORDS[mirrors.SHOWN_FAILURES]} failure",
    f"the first {MOST_QUEUES:,} queues by name, at most {KEPT_SECONDS // LEAST_SECONDS} rows each",
    f"no measurement later than {measurements.ROUND_BUDGET:g} s after its round began",
    f"of a partition at most one message in {commit_ages.LOOK_SECONDS:g} s",
    f"at a time at most {commit_ages.MOST_PARTITIONS} partitions of a queue",
    f"for at most {100 / commit_ages.REST:g} % of the time",
    f"[unlocked](security.md#the-page) for {callers.UNLOCKED_SECONDS / 60:g} minutes",
    f"at most {messages.LOOK_BYTES:,} bytes of values",
    f"ends after {peeking.READ_BYTES / MIB:g} MiB of whole values",
    f"`max_messages` ({wire.MOST_LETTERS}, the most)",
    f"`limit` is 1..1000, of messages 1..{MOST_MESSAGES}",
]


@pytest.mark.parametrize("said", SAID)
def test_the_contract_names_the_codes_number(said: str) -> None:
    assert said in re.sub(r"\s+", " ", text("docs/protocol.md"))


def test_what_takes_a_moment_less_than_the_contract_allows() -> None:
    """Replicas look once a second; a call waits for the database until its own limit, and the
    answer takes a moment."""
    page = text("docs/protocol.md")
    assert "Replicas stamp a row in Postgres every second" in page
    assert replica.SWEEP_SECONDS == 1.0
    [most] = re.findall(r"gets 503 `unavailable` within (\d+) s", page)
    assert float(most) > routing.ANSWER_SECONDS
    [most] = re.findall(r"If it dies, another continues within (\d+) s", page)
    waits = mirrors.CLAIM_SECONDS, mirrors.CLAIM_PAUSE_SECONDS, mirrors.ROUND_SECONDS
    assert float(most) > sum(waits)
