"""The command line: `counterpoise …`.

`app.py` assembles it; commands of other packages (`serve`, `migrate`) come through the
entry-point group `counterpoise.commands`.
"""

from counterpoise.cli.app import main

__all__ = ["main"]
