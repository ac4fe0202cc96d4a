"""`consume QUEUE | head`: the reader of its output ends before it does."""

import json
import re

# More than a pipe holds, so that it is still writing.
MESSAGES = 3000


def test_a_reader_that_ends_early_is_told_what_is_committed(run, start):
    run("queues", "create", "a", "-p", "1", "--rebalance-delay", "0")
    run("publish", "a", "-q", stdin=("x" * 900 + "\n") * MESSAGES)
    process = start("consume", "a")
    assert process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == 1
    assert "Traceback" not in said
    assert "--max-messages" in said
    told = re.search(r"([\d,]+) messages? of a that it was given are committed", said)
    assert told, said
    [one] = json.loads(run("positions", "show", "a", "--json").stdout)["partitions"]
    assert int(one["position"] or 0) == int(told[1].replace(",", "")) < MESSAGES
