"""Documents between a query's source and its driver."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest

from counterpoise.spark.channel import Channel, make_home


@pytest.mark.parametrize(
    "instance_id",
    ["orders-1", "../../etc/passwd", "a/b\\c:d*?", "", " ", "日本 ☃", "\udcff", "x" * 5000],
)
def test_what_is_said_is_heard_whatever_the_instance_is_called(
    tmp_path: Path, instance_id: str
) -> None:
    said = {"instance": instance_id.encode(errors="replace").decode(), "partitions": {"3": 1}}
    Channel(tmp_path, instance_id).put("view", said)
    assert Channel(tmp_path, instance_id).get("view") == said
    assert Channel(tmp_path, instance_id).get("plan") is None
    assert Channel(tmp_path, instance_id + "2").get("view") is None
    # Nothing outside its own directory, and nothing left over beside the document.
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


def test_what_cannot_be_written_leaves_what_was_said(tmp_path: Path) -> None:
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
