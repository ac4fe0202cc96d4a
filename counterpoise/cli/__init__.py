"""The command line: `counterpoise …`.

`app.py` puts it together; commands of other packages (`serve`, `migrate`) arrive through the
entry-point group `counterpoise.commands`.
"""

from counterpoise.cli.app import main

__all__ = ["main"]
