"""Each cell of the first table of docs/spark.md has a test in a real Spark, which is named here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = (HERE.parents[2] / "docs" / "spark.md").read_text("utf-8")
COLUMNS = ("a handoff", "a crash", "a resize")

REFUSED = (
    "driver/test_stateful.py::test_it_is_refused_before_anything_is_bound_and_allowed_by_name",
) * 3
REPLAYED = (
    "test_warmup_applications.py::test_three_applications_start_and_leave_while_the_others_warm_up"
)
WARM = (
    "test_warmup_applications.py::test_there_and_back_again_the_state_is_right",
    "test_warmup_applications.py::test_learners_and_owners_come_go_and_die",
)
COUNTED = "aggregates/test_aggregate.py"
RESIZED = f"{COUNTED}::test_resizes_in_both_directions_within_a_window"
REMEMBERED = (
    "aggregates/test_deduplication.py::test_ids_that_come_again_after_a_drain_a_crash_and_a_resize"
)
QUERIED = "processors/test_queries.py"
PAIRS = f"{QUERIED}::test_pairs_in_a_drain_a_crash_and_a_resize"
# By operator and sink, the beginnings of the first two cells: of each column a test.
TESTS = {
    ("row by row", "FencedSink"): (
        "sink/test_kills.py::test_stuck_ones_that_wake_after_a_forced_handoff",
        "sink/test_kills.py::test_killed_at_every_step_and_restarted_at_once",
        # The aggregate writes by FencedSink.
        RESIZED,
    ),
    ("row by row", "others"): (
        "test_applications.py::test_a_second_application_joins_and_the_first_leaves_without_a_trace",
        "test_applications.py::test_killed_and_restarted_it_replays_the_batch_that_was_planned",
        "test_ordered_resize.py::test_without_ordered_resizes_newer_messages_come_first",
    ),
    ("windows and totals", "FencedAggregate"): (
        f"{COUNTED}::test_a_backlog_goes_to_an_application_at_a_later_time",
        "aggregates/test_kills.py::test_every_window_is_written_once_and_whole",
        RESIZED,
    ),
    ("each id once", "Deduplicate in a FencedSink"): (REMEMBERED,) * 3,
    ("windows in Spark", "WindowAggregate, FencedSink"): (
        f"{QUERIED}::test_a_window_is_written_once_and_whole",
        *(f"{QUERIED}::test_windows_in_a_crash_and_resizes",) * 2,
    ),
    ("ids in Spark", "DuplicateFilter, FencedSink"): (
        f"{QUERIED}::test_an_id_that_comes_again_after_a_drain",
        *(f"{QUERIED}::test_ids_in_a_crash_and_a_resize",) * 2,
    ),
    ("pairs of one log", "JoinByKey, FencedSink"): (PAIRS,) * 3,
    ("pairs of aligned logs", "JoinByKey, a table with a key"): (
        f"{QUERIED}::test_pairs_of_two_logs_whose_first_message_came_before_a_drain",
        *(f"{QUERIED}::test_pairs_of_two_logs_in_a_crash_and_a_resize",) * 2,
    ),
    ("transformWithState with a TenuredProcessor", "any"): (
        REPLAYED,
        REPLAYED,
        "state/test_resizes.py::test_of_a_processor",
    ),
    ("foreachBatch with a StatefulForeachBatch", "any"): (
        *WARM,
        "state/test_resizes.py::test_of_a_foreach_batch",
    ),
    ("state that Spark keeps alone", "any"): REFUSED,
}


def rows() -> list[tuple[str, ...]]:
    """The cells of the table, without the marks of links and code."""
    table = re.search(r"^\| operator \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.M)
    assert table is not None
    text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", table[0]).replace("`", "")
    lines = [line for line in text.splitlines() if not line.startswith("|-")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


def test_the_page_begins_with_the_table() -> None:
    assert PAGE.index("| operator |") < PAGE.index("\n## ")
    head, *_ = rows()
    assert head == ("operator", "sink", *COLUMNS)


def test_every_row_has_its_tests() -> None:
    _, *found = rows()
    named = [(operator.partition(":")[0], sink) for operator, sink, *_ in found]
    assert named == list(TESTS)
    assert all(len(tests) == len(COLUMNS) for tests in TESTS.values())


@pytest.mark.parametrize("test", sorted({test for tests in TESTS.values() for test in tests}))
def test_the_test_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((HERE / path).read_text("utf-8"))
    (found,) = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    # One of these starts Spark.
    assert {argument.arg for argument in found.args.args} & {"spark", "stage", "messages"}
