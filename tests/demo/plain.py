"""The demo with plain consumers in place of its PySpark applications: the same acts, no JVM.

Sabotage is in the work that both share (`broker/demo/work/staging.py`), so a sabotaged demo
is bad with either. Four Sparks would cost five times as much as all the rest.
"""

from __future__ import annotations

import sys

from broker.demo import main, playing, stage


class PlainStage(stage.Stage):
    """Starts consumers in plain Python."""

    def start_application(self, name: str, instance: str, program: str = "consumer") -> None:
        super().start_application(name, instance, program)

    def stop_application(self, name: str) -> None:
        """It has been drained, so it ends by itself, and at once."""
        child = self._children[name]
        self.wait(f"{name} to end", lambda _: child.exit_code is not None, ending=name)
        super().stop_application(name)


if __name__ == "__main__":
    vars(playing)["Stage"] = PlainStage
    sys.exit(main(sys.argv[1:]))
