"""The command line: `counterpoise …`.

`app.py` assembles it; commands of other packages (`serve`, `migrate`) come through the
entry-point group `counterpoise.commands`.
"""

import gc

# Most of what a command makes are modules, which stay. With Python's own number the collector looks
# through them so often that a start takes a sixth longer.
_MADE_BETWEEN_COLLECTIONS = 20_000


def main() -> None:
    """The command `counterpoise`."""
    gc.set_threshold(_MADE_BETWEEN_COLLECTIONS)

    from counterpoise.cli import app

    app.main()


__all__ = ["main"]
