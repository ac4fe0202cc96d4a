"""The example of docs/testing.md, run by pytest as a user's own, with the plugin's fixture."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs/testing.md"


@pytest.mark.long
def test_the_example_passes_in_a_project_of_its_own(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "test_example.py").write_text(example, "utf-8")
    # An environment made by an earlier version lacks the plugin's entry point.
    (tmp_path / "conftest.py").write_text(
        "from counterpoise.testing.plugin import counterpoise_service as counterpoise_service\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
