"""Future releases, for tests of upgrades: the current code with more revisions of the control
tables.

    release = Release(tmp_path, contract=True)
    ServeProcess(log_file, arguments, program=release.program)

`python -m tests.schema_levels DIRECTORY …` is `counterpoise …` of the release in that directory.
"""

import sys
from dataclasses import replace
from pathlib import Path

import counterpoise.cli.app
from broker.postgres import migrations

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
"""Takes away what the code before the previous revision still reads."""
from alembic import op

revision = "control_after"
down_revision = "control_next"
serves_from = "control_next"
contracts = True


def upgrade():
    op.execute("ALTER TABLE counterpoise.queues ALTER COLUMN colour DROP DEFAULT")
'''


class Release:
    """A release with one revision that expands, and with `contract` one more that contracts."""

    def __init__(self, directory: Path, *, contract: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        previous = migrations.head(migrations.CONTROL)
        (directory / "expand.py").write_text(_EXPAND.format(previous=previous))
        if contract:
            (directory / "contract.py").write_text(_CONTRACT)

    @property
    def program(self) -> list[str]:
        """The program that runs the command line of this release."""
        return [sys.executable, "-m", "tests.schema_levels", str(self.directory)]

    @property
    def control(self) -> migrations.Tree:
        """The migrations of the control tables of this release."""
        return replace(migrations.CONTROL, more_versions=(str(self.directory),))


if __name__ == "__main__":
    directory = sys.argv.pop(1)
    migrations.CONTROL = replace(migrations.CONTROL, more_versions=(directory,))
    counterpoise.cli.app.main()
