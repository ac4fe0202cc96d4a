"""The names in `import counterpoise`, and the modules that it does not load."""

import subprocess
import sys

import pytest

import counterpoise


def test_every_public_name_is_there():
    assert [getattr(counterpoise, name).__name__ for name in counterpoise.__all__] == (
        counterpoise.__all__
    )
    assert {*counterpoise.__all__, "__version__"} <= {*dir(counterpoise)}
    with pytest.raises(AttributeError, match="nothing"):
        _ = counterpoise.nothing  # type: ignore[attr-defined]


def test_importing_it_loads_neither_http_nor_arrow():
    code = "import sys, counterpoise; print({'httpx', 'pyarrow', 'psycopg'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
