"""Which versions of PySpark the source works with, and the refusal of others.

Older ones lack what it is made of, each something else: without the refusal PySpark 3.5 says that a
module is missing, and 4.0 that the source exists already.
"""

OLDEST, BELOW = (4, 3), (5,)
HOW = "pip install --upgrade 'counterpoise[spark]'"


def supports(version: str) -> bool:
    """Whether the source works with this version of PySpark (`pyspark.__version__`)."""
    return OLDEST <= tuple(int(part) for part in version.split(".")[:2]) < BELOW


def require_pyspark() -> None:
    """Raises ImportError if PySpark is not installed, or is of a version that does not do."""
    try:
        from pyspark import __version__ as version
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        found = "none"
    else:
        if supports(version):
            return
        found = f"PySpark {version}"
    raise ImportError(
        f"counterpoise.spark needs PySpark 4.3 or later, below 5, and {found} is installed: {HOW}"
    )
