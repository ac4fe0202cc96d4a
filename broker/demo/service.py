"""`counterpoise serve`, tied to the demo: it ends when its standard input does.

So a demo that is killed leaves no service behind.
"""

import os
import signal
import sys
import threading

from counterpoise.cli import main


def _until_orphaned() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_until_orphaned, daemon=True).start()
    main()
