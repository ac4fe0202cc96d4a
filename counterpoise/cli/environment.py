"""`counterpoise java-home`: the Java that Spark's own commands run on."""

from __future__ import annotations

import click

from counterpoise.spark.driver.environment import ensure_java
from counterpoise.spark.errors import CannotStart


@click.command("java-home")
def java_home() -> None:
    """Print a JAVA_HOME that Spark runs on, for spark-submit and Spark's daemons.

    export JAVA_HOME="$(counterpoise java-home)"

    It is the Java of JAVA_HOME, else of the PATH, else that of counterpoise[spark], in this order;
    one that is too old for Spark is passed over.
    """
    home = ensure_java()
    if home is None:
        raise CannotStart(
            "Spark needs Java 17 or newer: pip install 'counterpoise[spark]' brings one"
        )
    click.echo(home)
