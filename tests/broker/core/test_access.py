"""Roles, rights and patterns of queues."""

import sys
from itertools import product
from types import FrameType
from typing import Any

import pytest

from broker.core.access import (
    RIGHTS,
    Caller,
    Right,
    Role,
    anybody,
    check_patterns,
    flow_caller,
    matches,
)
from broker.core.errors import Forbidden, Invalid


def caller(role: Role, *patterns: str) -> Caller:
    return Caller(RIGHTS[role], patterns or ("*",), role, "0123456789ab")


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*", "flights", True),
        ("flights", "flights", True),
        ("flights", "flights2", False),
        ("flights", "Flights", False),
        ("team-a.*", "team-a.orders", True),
        ("team-a.*", "team-axorders", False),
        ("team-a.*", "team-a.", True),
        ("?", "a", True),
        ("?", "ab", False),
        ("*.orders", "team-a.orders", True),
        ("a*b*c", "a-b-b-c", True),
        ("", "", True),
    ],
)
def test_a_pattern_matches_the_whole_name(pattern: str, name: str, expected: bool) -> None:
    assert matches((pattern,), name) is expected


def test_one_of_several_patterns_is_enough() -> None:
    assert matches(("orders", "team-a.*"), "team-a.x")
    assert not matches((), "orders")


@pytest.mark.parametrize(
    "pattern", ["", "a b", "[ab]", "a/b", "ä", "a\n", "*\n", "a" * 201, "{a,b}", "!a", "a,b"]
)
def test_other_characters_are_taken_literally(pattern: str) -> None:
    with pytest.raises(Invalid):
        check_patterns(("*", pattern))


def test_a_key_is_for_some_queue() -> None:
    with pytest.raises(Invalid):
        check_patterns(())


def test_no_pattern_takes_long() -> None:
    """A matcher with backtracking would take years."""
    assert not matches(("*a" * 99,), "a" * 98 + "b" * 102)


def test_a_pattern_takes_a_step_for_each_of_its_characters() -> None:
    """With a step for each pair of characters, one call with 100 long patterns took a minute."""
    lines = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    longest = [f"{'?' * 197}{number:03}" for number in range(5)]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert matches(tuple(longest), longest[-1])
    finally:
        sys.settrace(before)
    assert lines < 10 * 5 * 200


@pytest.mark.parametrize(
    ("role", "rights"),
    [
        (Role.VIEWER, {Right.SEE}),
        (Role.PUBLISHER, {Right.SEE, Right.PUBLISH}),
        (Role.CONSUMER, {Right.SEE, Right.CONSUME}),
        (Role.ADMIN, {*Right}),
    ],
)
def test_a_role_has_its_rights_on_its_queues(role: Role, rights: set[Right]) -> None:
    one = caller(role, "team-a.*")
    for right in Right:
        if right in rights:
            one.require(right)
            one.require(right, queue="team-a.orders")
        else:
            with pytest.raises(Forbidden, match=f"a {role} of team-a"):
                one.require(right)
        with pytest.raises(Forbidden):
            one.require(right, queue="team-b.orders")


def test_one_of_several_rights_is_enough() -> None:
    caller(Role.CONSUMER).require(Right.PUBLISH, Right.CONSUME)
    with pytest.raises(Forbidden, match="admin or publisher"):
        caller(Role.CONSUMER).require(Right.PUBLISH)


def test_a_flow_sees_and_reads_its_own_queue() -> None:
    flow = flow_caller("f-1", "flights", None, None)
    flow.require(Right.SEE, queue="flights")
    flow.require(Right.CONSUME, queue="flights")
    for right, queue in ((Right.SEE, "flights2"), (Right.PUBLISH, None), (Right.ADMINISTER, None)):
        with pytest.raises(Forbidden, match="flow's token"):
            flow.require(right, queue=queue)


def test_without_keys_each_caller_is_an_administrator() -> None:
    anybody().require(Right.ADMINISTER, queue="flights")
    assert anybody().sees("flights")


@pytest.mark.parametrize(
    ("pattern", "within", "beyond"),
    [
        ("*", ["*", "a", "a?*", "team-*"], []),
        ("team-a.*", ["team-a.*", "team-a.x", "team-a.?", "team-a.x*"], ["team-a", "team-*", "*"]),
        ("a?", ["ab", "a?"], ["a*", "a", "abc", "a??"]),
        ("a?*", ["ab", "abc*", "a?*", "a??"], ["a*", "*", "?b"]),
        ("a*b", ["ab", "a*b", "a*xb", "a?b"], ["a*", "*b", "a*bc"]),
        ("orders", ["orders"], ["Orders", "order?", "orders*"]),
    ],
)
def test_a_pattern_covers_others(pattern: str, within: list[str], beyond: list[str]) -> None:
    assert [one for one in within if not matches((pattern,), one)] == []
    assert [one for one in beyond if matches((pattern,), one)] == []
    assert all(matches((pattern, "else"), one) for one in [*within, "else"])
    assert matches((pattern, "other"), "else") == (pattern == "*")


def test_what_is_covered_matches_no_more() -> None:
    """Each of 85 patterns against each."""
    words = [words_of("ab", length) for length in range(6)]
    names = [name for some in words for name in some]
    patterns = [each for length in range(4) for each in words_of("ab*?", length)]
    matched = {each: {name for name in names if matches((each,), name)} for each in patterns}
    covered = [(p, o) for p in patterns for o in patterns if matches((p,), o)]
    assert [(p, o) for p, o in covered if not matched[o] <= matched[p]] == []
    assert len(covered) > len(patterns)


def words_of(letters: str, length: int) -> list[str]:
    return ["".join(word) for word in product(letters, repeat=length)]
