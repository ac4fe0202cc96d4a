"""The command line: `counterpoise …`.

`app.py` assembles it, also the commands of the service.
"""

import gc
import io
import os
import signal
import sys
from importlib.util import find_spec
from types import FrameType
from typing import NoReturn

# Most of what a command makes are modules, which stay: 50,000 objects with the client's. The first
# look through them would take a tenth of a short command's time.
_MADE_BETWEEN_COLLECTIONS = 100_000

# Of these no program needs any that consumes or publishes.
NEEDED = ("click", "rich")
INSTALL = "pip install 'counterpoise[cli]'"


def main() -> None:
    """The command `counterpoise`. Without the packages of its extra it says in a line how to
    install them, with exit code 1.
    """
    if not all(map(find_spec, NEEDED)):
        sys.exit(f"counterpoise: the command needs {' and '.join(NEEDED)}: {INSTALL}")
    gc.set_threshold(_MADE_BETWEEN_COLLECTIONS)
    end_in_order()
    # httpx would load its own command line, which takes as long as the rest of it.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    mend_streams()
    mend_size()

    from counterpoise.cli import app

    try:
        app.main()
    finally:
        # Python would look through all objects once more before the process ends with them.
        gc.freeze()


def end_in_order() -> None:
    """Whatever ends a command, each `finally` of it runs: on SIGTERM and SIGHUP (the terminal is
    gone) as on Ctrl-C. A SIGHUP that is ignored stays so: nohup.
    """

    def leave(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)


def mend_size() -> None:
    """A terminal that does not know its size yet may report none, and nothing fits into that."""
    for name in ("COLUMNS", "LINES"):
        if not os.environ.get(name, "").strip("0"):
            os.environ.pop(name, None)


def mend_streams() -> None:
    """Whatever the standard streams are, commands can use them: one that is closed becomes the null
    device, and characters that the terminal does not have become escapes.
    """
    # From the lowest number on, so that no other file becomes a standard stream.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


__all__ = ["main"]
