"""The next release, for tests of upgrades: the current code with a migration of the control tables.

    release = NextRelease(tmp_path)
    ServeProcess(log_file, arguments, program=release.program)

It is what an author adds (CONTRIBUTING.md, *Write a migration*): a revision that expands and one
that contracts, the `.sql` files as they are afterwards, and a level of which queues may be. `python
-m tests.next_release DIRECTORY …` is `counterpoise …` of the release in that directory.
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import counterpoise.cli.app
from broker.postgres import migrations
from broker.store import levels

_EXPAND = '''
"""Adds a column and a table that older code does not know."""
from alembic import op

revision = "control_next"
down_revision = {previous!r}
serves_from = {previous!r}


def upgrade():
    op.execute("ALTER TABLE counterpoise.queues ADD COLUMN colour text NOT NULL DEFAULT 'grey'")
    op.execute("CREATE TABLE counterpoise.colours (name text PRIMARY KEY)")
'''
_CONTRACT = '''
"""Takes away what only the code before the previous revision needs."""
from alembic import op

revision = "control_after"
down_revision = "control_next"
serves_from = "control_next"
contracts = True


def upgrade():
    op.execute("ALTER TABLE counterpoise.queues ALTER COLUMN colour DROP DEFAULT")
'''
_LAST_COLUMN = "    level smallint NOT NULL DEFAULT 0,\n"
_PRESENT_COLUMN = "    colour text NOT NULL,\n"
_PRESENT_TABLE = "CREATE TABLE counterpoise.colours (name text PRIMARY KEY);\n"


class NextRelease:
    """Its revisions are `control_next`, which expands, and `control_after`, which contracts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        here = migrations.CONTROL.location
        shutil.copytree(here, directory, ignore=shutil.ignore_patterns("__pycache__"))
        previous = migrations.head(migrations.CONTROL)
        (directory / "versions" / "next.py").write_text(_EXPAND.format(previous=previous))
        (directory / "versions" / "after.py").write_text(_CONTRACT)
        tables = directory / "sql" / "tables.sql"
        present = tables.read_text("utf-8")
        assert present.count(_LAST_COLUMN) == 1
        present = present.replace(_LAST_COLUMN, _LAST_COLUMN + _PRESENT_COLUMN)
        tables.write_text(present + _PRESENT_TABLE, "utf-8")

    @property
    def program(self) -> list[str]:
        """The program that runs the command line of this release."""
        return [sys.executable, "-m", "tests.next_release", str(self.directory)]

    @property
    def control(self) -> migrations.Tree:
        """The migrations of the control tables of this release."""
        return replace(migrations.CONTROL, location=self.directory)


if __name__ == "__main__":
    directory = sys.argv.pop(1)
    levels.LEVEL += 1
    migrations.CONTROL = replace(migrations.CONTROL, location=Path(directory))
    counterpoise.cli.app.main()
