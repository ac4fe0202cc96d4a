"""`counterpoise positions`: where consumers are, and where they continue."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from counterpoise.cli import positions
from counterpoise.cli.positions import moment
from counterpoise.client import Client
from counterpoise.wire import CommitItem


@pytest.fixture
def consumed(run):
    """A queue of two partitions with six messages, four of them consumed."""
    run("queues", "create", "a", "-p", "2", "--rebalance-delay", "0")
    run("publish", "a", "-q", stdin="x\n" * 6)
    run("consume", "a", "-n", "4", "-q")


def shown(run):
    return json.loads(run("positions", "show", "a", "--json").stdout)["partitions"]


def test_setting_asks_first_and_without_a_terminal_needs_yes(run, consumed, monkeypatch):
    before = shown(run)
    said = run("positions", "set", "a", "earliest", code=1)
    assert "4 messages would be read again" in said.stderr
    assert "--yes" in said.stderr
    assert shown(run) == before
    monkeypatch.setattr(positions, "for_people", lambda: True)
    said = run("positions", "set", "a", "earliest", "--json", stdin="n\n", code=1)
    assert "READ AGAIN" in said.stderr
    assert not said.stdout
    assert shown(run) == before
    said = run("positions", "set", "a", "earliest", "--json", stdin="y\n")
    assert "4 messages would be read again, 0 would be skipped" in said.stderr
    assert json.loads(said.stdout)["read_again"] == 4
    assert {one["position"] for one in shown(run)} == {"0"}
    monkeypatch.undo()
    assert "2 positions set" in run("positions", "set", "a", "earliest").output, "nothing moves"


def test_it_asks_also_if_no_position_moves_but_work_above_one_is_forgotten(run, service):
    run("queues", "create", "a", "-p", "1", "--rebalance-delay", "0")
    run("publish", "a", "-q", stdin="x\n" * 3)
    with Client(service.url) as client:
        bound = client.bind("a", "one", at_once=True)
        done = CommitItem(0, 1, "0", done_above="1+2")
        client.commit("a", bound.flow_id, bound.flow_token, [done], 1)
    said = run("positions", "set", "a", "earliest", code=1)
    assert "0 of 1 position would move; 2 messages would be read again" in said.stderr


@pytest.mark.long
def test_a_dry_run_says_what_would_be_read_again_and_changes_nothing(run, consumed):
    before = shown(run)
    assert sum(int(one["position"] or 0) for one in before) == 4
    said = run("positions", "set", "a", "earliest", "--dry-run").output
    assert "4 messages would be read again, 0 would be skipped" in said
    document = json.loads(run("positions", "set", "a", "latest", "--dry-run", "--json").stdout)
    assert (document["dry_run"], document["read_again"], document["skipped"]) == (True, 0, 2)
    assert shown(run) == before
    table = run("positions", "show", "a").output.splitlines()
    assert table[0].split() == ["PARTITION", "POSITION", "END", "LAG"]


def test_positions_are_set_and_put_back_from_a_file(run, consumed, tmp_path):
    kept = tmp_path / "positions.json"
    kept.write_text(run("positions", "show", "a", "--json").stdout)
    before = {one["partition"]: one["position"] or "0" for one in shown(run)}
    assert (
        "4 messages are read again, 0 are skipped"
        in run("positions", "set", "--yes", "a", "earliest").output
    )
    assert {one["position"] for one in shown(run)} == {"0"}
    for again in ("earliest", "2h"):
        assert (
            "; nothing older is in the log" in run("positions", "set", "--yes", "a", again).output
        )
    assert "older" not in run("positions", "set", "a", "latest", "--dry-run").output
    assert len(run("consume", "a", "-n", "6", "-q").stdout.splitlines()) == 6
    assert (
        "2 messages are read again, 0 are skipped"
        in run("positions", "set", "--yes", "a", "--file", str(kept)).output
    )
    assert {one["partition"]: one["position"] or "0" for one in shown(run)} == before
    one_of_them = tmp_path / "one.json"
    one_of_them.write_text('{"1": "0"}')
    run("positions", "set", "--yes", "a", "--file", str(one_of_them))
    assert [one["position"] or "0" for one in shown(run)] == [before[0], "0"]


def test_a_time_skips_what_was_published_before_it(run, consumed, service):
    with Client(service.url) as client:
        lag = sum(one.lag or 0 for one in client.partitions("a"))
    future = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
    said = run("positions", "set", "a", future, "--dry-run").output
    assert f"0 messages would be read again, {lag} would be skipped" in said
    assert f"would move to {future.replace('+00:00', 'Z')}" in said
    assert (
        "4 messages would be read again" in run("positions", "set", "a", "2h", "--dry-run").output
    )


def test_times_are_read_as_people_write_them():
    def seconds(text):
        return abs((moment(text) - datetime.now(UTC)).total_seconds())

    assert 5399 < seconds("90m") < 5460
    assert 7 * 86400 - 1 < seconds("7d") < 7 * 86400 + 60
    assert moment("2026-11-20T10:00:00Z") == datetime(2026, 11, 20, 10, tzinfo=UTC)
    # Without an offset it is a time of this machine.
    local = datetime(2026, 11, 20, 10).astimezone()
    assert moment("2026-11-20 10:00") == local


@pytest.mark.long
@pytest.mark.matrix("arguments")
@pytest.mark.parametrize(
    ("arguments", "content"),
    [
        ([], None),
        (["yesterday"], None),
        (["999999d"], None),
        (["0001-01-01"], None),
        (["earliest"], '{"0": "1"}'),
        ([], "nonsense"),
        ([], "[]"),
        ([], "{}"),
        ([], '{"x": "1"}'),
        ([], '{"0": 1}'),
        ([], '{"partitions": [{"partition": 0}]}'),
        ([], '{"partitions": [{"partition": 0.9, "position": "1"}]}'),
        ([], '{"partitions": [{"partition": 0, "position": "1"}, {"partition": 0}]}'),
        ([], '{"0": "1", "00": "2"}'),
        ([], '{"0": "1", "0": "2"}'),
        ([], '{"-1": "1"}'),
    ],
)
def test_wrongmoments_are_refused_before_anything_is_asked(run, tmp_path, arguments, content):
    if content is not None:
        file = tmp_path / "positions.json"
        file.write_text(content)
        arguments = [*arguments, "--file", str(file)]
    said = run("positions", "set", "nowhere", *arguments, code=2).stderr
    assert ("out of range" in said) == (arguments in (["999999d"], ["0001-01-01"]))


@pytest.mark.long
def test_positions_that_the_log_cannot_have_are_refused_by_name(run, consumed, tmp_path):
    file = tmp_path / "positions.json"
    file.write_text('{"0": "77"}')
    before = shown(run)
    said = run("positions", "set", "--yes", "a", "-f", str(file), code=1).stderr
    assert "77 is beyond that" in said
    assert shown(run) == before


@pytest.mark.long
def test_what_was_set_is_shown_and_not_what_the_dry_run_expected(
    run, consumed, service, monkeypatch
):
    """Messages may be published between the two."""
    real = Client.set_positions

    def publishing(self, queue, target, *, dry_run=False):
        answer = real(self, queue, target, dry_run=dry_run)
        if dry_run:
            run("publish", queue, "-q", stdin="late\n" * 4)
        return answer

    monkeypatch.setattr(Client, "set_positions", publishing)
    said = json.loads(run("positions", "set", "--yes", "a", "latest", "--json").stdout)
    stored = {one["partition"]: one["position"] for one in shown(run)}
    assert {one["partition"]: one["position"] for one in said["partitions"]} == stored
    with Client(service.url) as client:
        assert all(one.lag == 0 for one in client.partitions("a"))


@pytest.mark.long
@pytest.mark.parametrize("where", [["--to", "earliest"], ["earliest"], ["--to", "2h"]])
def test_one_partition_is_set_and_the_others_stay(run, consumed, where):
    before = {one["partition"]: one["position"] for one in shown(run)}
    [moved] = [number for number in before if number == 1]
    said = run("positions", "set", "--yes", "a", "--partition", "1", *where).output
    assert "1 of 1 position set" in said
    after = {one["partition"]: one["position"] for one in shown(run)}
    assert after == {**before, moved: "0"}
    assert "has no partition 7" in run("positions", "set", "a", "-p", "7", *where, code=2).stderr
