"""Documents between a query's source and its driver."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from counterpoise.spark.channel.channel import (
    Channel,
    DriverEnd,
    channels_of,
    driver_home,
    make_home,
    source_end,
)
from counterpoise.spark.driver.driver import DoneListener


@pytest.mark.parametrize(
    "instance_id",
    ["orders-1", "../../etc/passwd", "a/b\\c:d*?", "", " ", "日本 ☃", "\udcff", "x" * 5000],
)
def test_documents_arrive_with_any_instance_name(tmp_path: Path, instance_id: str) -> None:
    said = {"instance": instance_id.encode(errors="replace").decode(), "partitions": {"3": 1}}
    Channel(tmp_path, instance_id).put("view", said)
    assert Channel(tmp_path, instance_id).get("view") == said
    assert Channel(tmp_path, instance_id).get("plan") is None
    assert Channel(tmp_path, instance_id + "2").get("view") is None
    # Nothing outside its own directory, and no file left besides the document.
    assert [path.name for path in tmp_path.iterdir()] == [
        Channel(tmp_path, instance_id).directory.name
    ]
    assert [path.name for path in tmp_path.glob("*/*")] == ["view.json"]


def test_a_document_is_replaced_as_a_whole_also_while_it_is_read(tmp_path: Path) -> None:
    channel = Channel(tmp_path, "me")
    channel.put("view", {"rows": [0] * 5000})
    over = threading.Event()
    seen: list[int] = []

    def read() -> None:
        other = Channel(tmp_path, "me")
        while not over.is_set():
            document = other.get("view")
            assert document is not None
            assert len(set(document["rows"])) == 1
            seen.append(document["rows"][0])

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 100):
        channel.put("view", {"rows": [number] * 5000})
    over.set()
    reader.join()
    assert seen == sorted(seen), "a later reading is never older"


def test_a_failed_write_leaves_the_earlier_document(tmp_path: Path) -> None:
    channel = Channel(tmp_path, "me")
    channel.put("view", {"a": 1})
    with pytest.raises(TypeError):
        channel.put("view", {"a": object()})
    assert channel.get("view") == {"a": 1}
    assert [path.name for path in channel.directory.iterdir()] == ["view.json"]


def test_the_stamp_tells_news_and_what_is_dropped_or_cleared_is_gone(tmp_path: Path) -> None:
    channel = Channel(tmp_path, "me")
    assert channel.stamp("drain") is None
    channel.put("drain", {"timeout_seconds": 1})
    first = channel.stamp("drain")
    assert first is not None
    assert channel.stamp("drain") == first
    channel.put("drain", {"timeout_seconds": 1})
    assert channel.stamp("drain") != first
    channel.put("plan", {})
    channel.drop("drain", "ready")
    assert channel.get("drain") is None
    assert channel.get("plan") == {}
    channel.clear()
    assert channel.get("plan") is None
    channel.clear()


def test_only_the_user_may_look(tmp_path: Path) -> None:
    home = Path(make_home())
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    channel = Channel(home, "me")
    channel.put("view", {})
    assert stat.S_IMODE(channel.directory.stat().st_mode) == 0o700
    document = channel.directory / "view.json"
    assert stat.S_IMODE(document.stat().st_mode) == 0o600
    assert json.loads(document.read_text()) == {}
    shutil.rmtree(home)  # as the driver's program does when it ends
    channel.put("view", {})
    assert not home.exists()


KILLED = """if True:
    import os
    from counterpoise.spark.channel.channel import Channel, make_home
    home = make_home()
    Channel(home, "me").put("view", {})
    print(home, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_what_killed_drivers_have_left_is_removed_an_hour_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runs = Path(make_home())
    old, new = (
        Path(
            subprocess.run(
                [sys.executable, "-c", KILLED],
                env={**os.environ, "TMPDIR": str(tmp_path)},
                capture_output=True,
                text=True,
                check=False,
            ).stdout.strip()
        )
        for _ in range(2)
    )
    not_ours = tmp_path / "counterpoise-spark-notes"
    not_ours.mkdir()
    for home in (runs, old, not_ours):
        for path in (home, *home.glob("*/")):
            os.utime(path, (1.0, 1.0))
    # A source that has just written something may still be there.
    os.utime(new, (1.0, 1.0))
    shutil.rmtree(make_home())
    assert {*tmp_path.iterdir()} == {runs, new, not_ours}


def test_the_driver_hears_the_source_that_speaks_for_the_instance_now(tmp_path: Path) -> None:
    before = source_end(tmp_path, "me", None)
    before.put("plan", {"of": "the run before"})
    driver = DriverEnd(tmp_path, "me")
    assert driver.get("plan") == {"of": "the run before"}
    driver.put("drain", {"timeout_seconds": 1})
    # It was killed and removed nothing. The next one has another name than in the checkpoint.
    now = source_end(tmp_path, "named", "me")
    assert now.get("drain") is None, "what was said to a query before is not for this one"
    for name in ("me", "named"):
        assert DriverEnd(tmp_path, name).get("plan") is None
    before.put("plan", {"of": "a process that ends late"})
    assert driver.get("plan") is None
    now.put("view", {"status": "bound"})
    assert driver.get("view") == {"status": "bound"}
    driver.put("drain", {"timeout_seconds": 2})
    assert now.get("drain") == {"timeout_seconds": 2}
    assert driver.stamp("drain") == now.stamp("drain")


def test_nothing_remains_of_a_source_that_has_ended(tmp_path: Path) -> None:
    for number in range(3):
        source_end(tmp_path, "me", "me").put("view", {"number": number})
    assert len(list(tmp_path.glob("*/view.json"))) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_source_that_cannot_say_its_name_is_not_taken_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source_end(tmp_path, "me", None).put("plan", {})

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        now = source_end(tmp_path, "me", None)  # the channel fails, but not the query
    assert "no space left" in caplog.text
    now.put("plan", {})
    assert DriverEnd(tmp_path, "me").get("plan") is None


def test_done_batches_are_told_to_the_present_source(tmp_path: Path) -> None:
    now = source_end(tmp_path, "named", "me")
    listener = DoneListener(tmp_path)
    end = {"counterpoise": 1, "queue": "flights", "instance": "me", "partitions": {}}
    listener.progressed({"runId": "r", "batchId": 3, "sources": [{"endOffset": end}]})
    assert now.get("done") == {"offset": end, "batch": 3, "dropped": 0, "ended": False}
    listener.terminated("r")
    assert (now.get("done") or {})["ended"]


class Query:
    """A query of Spark's, on sources of these formats (None: files), with their offsets."""

    def __init__(self, *formats: str | None) -> None:
        self.offsets: list[str] = []
        self.formats = formats
        self._jsq = SimpleNamespace(streamingQuery=lambda: self)

    def analyzedPlan(self) -> Any:  # noqa: N802
        leaves = [
            SimpleNamespace(nodeName=lambda: "StreamingRelation")
            if one is None
            else SimpleNamespace(
                nodeName=lambda: "StreamingRelationV2", sourceName=lambda one=one: one
            )
            for one in self.formats
        ]
        return SimpleNamespace(collectLeaves=lambda: _sequence(leaves))

    def availableOffsets(self) -> Any:  # noqa: N802
        return _sequence([_entry(number, one) for number, one in enumerate(self.offsets)])


def _sequence(items: list[Any]) -> Any:
    """One of Scala's."""
    left = iter([*items, None])
    upcoming = [next(left)]

    def following() -> Any:
        item = upcoming.pop()
        upcoming.append(next(left))
        return item

    iterator = SimpleNamespace(hasNext=lambda: upcoming[0] is not None, next=following)
    return SimpleNamespace(iterator=lambda: iterator)


def _entry(source: int, offset: str) -> Any:
    """An entry of a Scala map from a source to its offset."""
    stream = SimpleNamespace(hashCode=lambda: source)
    return SimpleNamespace(_1=lambda: stream, _2=lambda: SimpleNamespace(json=lambda: offset))


def channels(query: Query) -> list[Channel] | None:
    return channels_of(cast(Any, query))


@pytest.mark.parametrize("offset", [None, "17", "null", '{"logOffset": 3}', "text"])
@pytest.mark.parametrize("source", ["rate", None])
def test_a_query_of_other_sources_has_no_channels_whatever_its_offsets(
    source: str | None, offset: str | None
) -> None:
    """`rate` counts, and a file source on an empty directory never has an offset."""
    query = Query(source)
    query.offsets = [] if offset is None else [offset]
    assert channels(query) == []


def test_a_query_of_ours_is_waited_for_until_its_source_has_planned() -> None:
    home = driver_home()
    query = Query("rate", "CounterPoise", None)
    assert channels(query) is None
    query.offsets = ["17"]
    assert channels(query) is None
    query.offsets.append(json.dumps({"counterpoise": 1, "instance": "planned", "partitions": {}}))
    found = channels(query)
    assert found is not None
    assert [one.directory for one in found] == [Channel(home, "planned").directory]
