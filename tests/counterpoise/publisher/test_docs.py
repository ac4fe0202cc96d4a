"""The examples of docs/publishing.md do what the page says."""

import re
from pathlib import Path

from counterpoise.testing.plugin import counterpoise_service

__all__ = ["counterpoise_service"]

PAGE = Path(__file__).resolve().parents[3] / "docs/publishing.md"


def test_the_examples_publish_each_message_once(counterpoise_service, capsys):
    counterpoise_service.create_queue("orders", partitions=4)
    thousand, lines = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    exec(thousand, {})
    for _ in range(2):  # the second run publishes nothing
        exec(lines, {})
    assert capsys.readouterr().out == "3 lines are in the queue\n" * 2
    assert len(counterpoise_service.messages("orders")) == 1003
