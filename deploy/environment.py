"""Makes the environment of this checkout in layers: `python deploy/environment.py .venv demo`.

A *layer* is a lock of its own, `deploy/locks/NAME.txt`: `demo` is what the demo needs, the others
are named for who asks for them (`Makefile`). An environment keeps the layers that it has; a file
`.NAME-layer` in it says that one is complete. uv installs them, since it takes a third of pip's
time. uv itself comes from the package index by its hash, and where there is no wheel of it for this
machine, pip installs everything.

Another PySpark than that of the layers is put beside them: `python deploy/environment.py .venv
spark-4.0` makes the directory `.venv/spark-4.0`, for the beginning of PYTHONPATH.

An environment belongs to one checkout, because both packages are editable in it. The file
`.checkout` names it.
"""

import ast
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "deploy/locks"
PACKAGES = (ROOT, ROOT / "deploy/server")
# PySpark comes as a source archive. Packing its 480 MB takes three times as long as all the rest.
BUILD = (
    "--no-build-isolation",
    "--config-settings-package=pyspark:--build-option=--compression=stored",
)
# What pip is told about the package index, and how uv names it.
INDEX = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}


def lock(name: str) -> Path:
    return LOCKS / f"{name}.txt"


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


class Environment:
    """The virtual environment of this checkout in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._bin = directory / "bin"
        self._python = self._bin / "python"

    def layers(self) -> list[str]:
        """The layers that it has."""
        return sorted(path.name[1:-6] for path in self.directory.glob(".*-layer"))

    def add(self, layer: str) -> None:
        """Bring it to its layers and this one, at the locked versions.

        Raises SystemExit if it belongs to another checkout or to another Python.
        """
        self._create()
        layers = sorted({*self.layers(), layer})
        for stamp in self.directory.glob(".*-layer"):
            stamp.unlink()
        if self._has_uv():
            self._install_by_uv(layers)
        else:
            self._install_by_pip(layers)
        for name in layers:
            (self.directory / f".{name}-layer").touch()

    def put_beside(self, name: str) -> None:
        """Install a lock into a directory of its own, `name`, in the environment, once."""
        directory = self.directory / name
        if directory.exists():
            return
        say(f"{directory} (once)")
        unfinished = self.directory / f"{name}.new"
        shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was cut off
        hashed = ("--no-deps", "--require-hashes", *BUILD)
        self._uv("pip", "install", "--quiet", *hashed, "--target", unfinished, "-r", lock(name))
        self._uv("cache", "clean", "--quiet", "pyspark")
        unfinished.rename(directory)

    def _create(self) -> None:
        owner = self.directory / ".checkout"
        if self._python.exists():
            self._check_python()
        else:
            say(f"{self.directory}: an environment of Python {sys.version.split()[0]}")
            venv.create(self.directory, with_pip=True)
            owner.write_text(f"{ROOT}\n")
        if not owner.exists():  # made by other means, for this checkout as far as is known
            owner.write_text(f"{ROOT}\n")
        if (other := owner.read_text().strip()) != str(ROOT):
            sys.exit(
                f"{self.directory} belongs to the checkout {other}, and this one is {ROOT}. "
                "Remove it, or choose another with VENV=DIRECTORY."
            )

    def _check_python(self) -> None:
        found = subprocess.run(
            [self._python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"],
            capture_output=True, text=True, check=False,
        ).stdout.strip()  # fmt: skip
        wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
        if found != wanted:
            sys.exit(
                f"{self.directory} has Python {found or 'that does not start'}, and PYTHON is "
                f"{wanted}. Remove it, or choose another with VENV=DIRECTORY."
            )

    # ------------------------------------------------------------------ by uv

    def _has_uv(self) -> bool:
        """Install the locked uv; false if the index has none for this machine."""
        hashed = ("--no-deps", "--require-hashes", "--only-binary=:all:")
        if self._pip("--quiet", *hashed, "-r", lock("uv")) == 0:
            return True
        say("uv could not be installed, so pip installs the rest: that takes three times as long")
        return False

    def _install_by_uv(self, layers: Sequence[str]) -> None:
        say(f"{self.directory}: the locked versions for {', '.join(layers)}")
        locks = [lock(layer) for layer in layers]
        hashed = ("--no-deps", "--require-hashes", *BUILD)
        self._uv("pip", "install", "--quiet", *hashed, "-r", lock("build"))
        # Takes out what an older lock had.
        self._uv(
            "pip", "sync", "--compile-bytecode", *hashed[1:], lock("uv"), lock("build"), *locks
        )
        self._uv("pip", "install", "--quiet", "--no-deps", "--no-build-isolation", *editable())
        self._uv("cache", "clean", "--quiet", "pyspark")  # it keeps 1.4 GB of the source archive

    def _uv(self, *arguments: str | Path) -> None:
        environment = {
            **os.environ,
            **index_settings(self._pip_config()),
            "VIRTUAL_ENV": str(self.directory),
            # Hashes decide what is installed, so any index may have it.
            "UV_INDEX_STRATEGY": "unsafe-best-match",
            "UV_NO_CONFIG": "1",
        }
        command = [self._bin / "uv", *arguments]
        if sys.stderr.isatty():
            code = subprocess.run(command, env=environment, check=False).returncode
        else:
            code = without_lists(command, environment)
        if code:
            sys.exit(f"uv {arguments[0]} {arguments[1]} failed; the lines above say why")

    # ------------------------------------------------------------------ by pip

    def _install_by_pip(self, layers: Sequence[str]) -> None:
        say(f"{self.directory}: the locked versions for {', '.join(layers)} (a few minutes)")
        hashed = ("--no-compile", "--no-deps", "--require-hashes", "--no-build-isolation")
        for name in ("build", *layers):
            if self._pip(*hashed, "-r", lock(name)):
                sys.exit("pip install failed; the lines above say why")
        if self._pip("--quiet", "--no-deps", "--no-build-isolation", *editable()):
            sys.exit("pip install failed; the lines above say why")
        # On all processors. Templates among the packages cannot be compiled.
        subprocess.run(
            [self._python, "-m", "compileall", "-qq", "-j", "0", self.directory], check=False
        )

    def _pip(self, *arguments: str | Path) -> int:
        command = [self._python, "-m", "pip", "install", "--disable-pip-version-check", *arguments]
        return subprocess.run(command, check=False).returncode

    def _pip_config(self) -> str:
        command = [self._python, "-m", "pip", "config", "list"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def editable() -> Iterator[str]:
    for package in PACKAGES:
        yield f"--editable={package}"


def index_settings(pip_config: str) -> dict[str, str]:
    """What `pip config list` prints, as variables of uv. Variables that are set already stay.

    pip lets `[install]` go before `[global]`, and the environment before both.
    """
    settings: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):
        for line in pip_config.splitlines():
            name, _, value = line.partition("=")
            if name.startswith(section) and (variable := INDEX.get(name[len(section) :])):
                words = ast.literal_eval(value).split()
                settings[variable] = ("," if variable == "UV_FIND_LINKS" else " ").join(words)
    return {name: value for name, value in settings.items() if name not in os.environ}


def without_lists(command: Sequence[str | Path], environment: Mapping[str, str]) -> int:
    """Run it, and show what it reports, but for its list of all packages."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if not line.startswith((" + ", " - ", " ~ ")):
                print(line, end="", file=sys.stderr, flush=True)
    return child.returncode


if __name__ == "__main__":
    environment = Environment(Path(sys.argv[1]).absolute())
    if sys.argv[2].startswith("spark-"):
        environment.put_beside(sys.argv[2])
    else:
        environment.add(sys.argv[2])
