"""The first table of docs/spark.md is made here: each cell has a test in a real Spark.

`REWRITE=1` writes it into the page.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from tests.counterpoise.spark.test_versions import HERE as SPARK
from tests.counterpoise.spark.test_versions import KILLS, VERSIONS
from tests.counterpoise.spark.test_versions import SITUATIONS as ON_EACH

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "spark.md"
COLUMNS = ("operator", "sink", "a handoff", "a crash", "a resize", "played on PySpark")

SITUATIONS = "test_situations.py::test_what_every_sink_has_in_every_situation"
JOINED = (
    "test_applications.py::test_a_second_application_joins_and_the_first_leaves_without_a_trace"
)
REPLAYED = (
    "test_warmup_applications.py::test_three_applications_start_and_leave_while_the_others_warm_up"
)
COUNTED = "aggregates/test_aggregate.py"
RESIZED = f"{COUNTED}::test_resizes_in_both_directions_within_a_window"
QUERIED = "processors/test_queries.py"
PAIRS = f"{QUERIED}::test_pairs_in_a_drain_a_crash_and_a_resize"
TWO_LOGS = f"{QUERIED}::test_pairs_of_two_logs_in_a_crash_and_a_resize"
WINDOWS = f"{QUERIED}::test_windows_in_a_crash_and_resizes"
IDS = f"{QUERIED}::test_ids_in_a_crash_and_a_resize"
REFUSED = "driver/test_stateful.py::test_it_is_refused_before_anything_is_bound_and_allowed_by_name"
ONCE, COMES_ALONG = "each message once", "the state comes along"
BEGIN = "keys that move to another partition begin with empty state"
MISSING = "open pairs of keys that move are missing"
# By operator and sink: what there is in a handoff, a crash and a resize, and the tests of that.
TABLE: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {
    (
        "row by row: `select`, `where`, UDFs, a join with a table",
        "[`FencedSink`](sink.md)",
    ): (
        (
            f"{ONCE}, in order",
            SITUATIONS,
            "sink/test_kills.py::test_stuck_ones_that_wake_after_a_forced_handoff",
        ),
        (
            f"{ONCE}, in order",
            SITUATIONS,
            "sink/test_kills.py::test_killed_at_every_step_and_restarted_at_once",
        ),
        # The aggregate writes by FencedSink.
        (f"{ONCE}; in order with `ordered_resize`", SITUATIONS, RESIZED),
    ),
    ("row by row", "[`QueueSink`](writing.md#chains)"): (
        (
            ONCE,
            SITUATIONS,
            "writer/test_kills.py::test_superseded_amid_its_appends_and_awake_again",
        ),
        (ONCE, SITUATIONS, "writer/test_kills.py::test_killed_amid_its_appends"),
        (ONCE, SITUATIONS),
    ),
    ("row by row", "others"): (
        (
            ONCE,
            SITUATIONS,
            JOINED,
        ),
        ("the micro-batch in flight may come twice", SITUATIONS),
        (
            ONCE,
            SITUATIONS,
            "test_ordered_resize.py::test_without_ordered_resizes_newer_messages_come_first",
        ),
    ),
    ("windows and totals", "[`FencedAggregate`](aggregates.md)"): (
        (
            "exact",
            SITUATIONS,
            f"{COUNTED}::test_a_backlog_goes_to_an_application_at_a_later_time",
        ),
        (
            "exact",
            SITUATIONS,
            "aggregates/test_kills.py::test_every_window_is_written_once_and_whole",
        ),
        ("exact", SITUATIONS, RESIZED),
    ),
    ("each id once", "[`Deduplicate`](sink.md#each-id-once) in a `FencedSink`"): (
        (("exact", SITUATIONS),) * 3
    ),
    ("windows in Spark", "[`WindowAggregate`](processors.md), `FencedSink`"): (
        ("exact", f"{QUERIED}::test_a_window_is_written_once_and_whole"),
        ("exact", WINDOWS),
        (
            "an open window comes in parts; what is open in retired partitions is not written",
            WINDOWS,
        ),
    ),
    ("ids in Spark", "[`DuplicateFilter`](processors.md), `FencedSink`"): (
        ("exact", f"{QUERIED}::test_an_id_that_comes_again_after_a_drain"),
        ("exact", IDS),
        ("an id passes again in another partition", IDS),
    ),
    ("pairs of one log", "[`JoinByKey`](processors.md#pairs), `FencedSink`"): (
        ("exact", PAIRS),
        ("exact", PAIRS),
        (MISSING, PAIRS),
    ),
    (
        "pairs of aligned logs",
        "[`JoinByKey`](aligned.md#a-join-in-spark), a table with a key",
    ): (
        ("exact", f"{QUERIED}::test_pairs_of_two_logs_whose_first_message_came_before_a_drain"),
        ("exact", TWO_LOGS),
        (MISSING, TWO_LOGS),
    ),
    ("`transformWithState` with a [`TenuredProcessor`](warmup.md)", "any"): (
        (COMES_ALONG, REPLAYED),
        (COMES_ALONG, REPLAYED),
        (BEGIN, "state/test_resizes.py::test_of_a_processor"),
    ),
    (
        "`foreachBatch` with a [`StatefulForeachBatch`](warmup.md#snapshots-foreachbatch)",
        "any",
    ): (
        (
            COMES_ALONG,
            "test_warmup_applications.py::test_there_and_back_again_the_state_is_right",
        ),
        (COMES_ALONG, "test_warmup_applications.py::test_learners_and_owners_come_go_and_die"),
        (BEGIN, "state/test_resizes.py::test_of_a_foreach_batch"),
    ),
    (
        "state that Spark keeps alone: `groupBy`, `dropDuplicates`, `limit`, a join of streams, …",
        "any",
    ): (
        ("[does not start](#state-and-handoffs)", SITUATIONS, REFUSED),
        ("does not start", SITUATIONS, REFUSED),
        ("does not start", SITUATIONS, REFUSED),
    ),
}


def played_on(cells: tuple[tuple[str, ...], ...]) -> str:
    """The versions of PySpark on which tests of all cells are played."""
    played = {test.removeprefix(f"{SPARK}/") for test in (*ON_EACH, *KILLS)}
    newest = VERSIONS[-1]
    return f"{VERSIONS[0]} to {newest}" if all(played & {*tests} for _, *tests in cells) else newest


def table() -> str:
    rows: list[tuple[str, ...]] = [COLUMNS, ("---",) * len(COLUMNS)]
    for (operator, sink), cells in TABLE.items():
        rows.append((operator, sink, *(answer for answer, *_ in cells), played_on(cells)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace(" --- ", "---")


def test_the_page_begins_with_the_table() -> None:
    page = PAGE.read_text("utf-8")
    if os.environ.get("REWRITE"):
        page = re.sub(
            r"^\| operator \|.*\n(?:\|.*\n)+", lambda _: table(), page, count=1, flags=re.M
        )
        PAGE.write_text(page, "utf-8")
    assert table() in page[: page.index("\n## ")]


TESTS = {test for cells in TABLE.values() for _, *tests in cells for test in tests}


@pytest.mark.parametrize("test", sorted(TESTS))
def test_the_test_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((HERE / path).read_text("utf-8"))
    (found,) = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    # One of these starts Spark.
    assert {argument.arg for argument in found.args.args} & {"spark", "stage", "messages"}
