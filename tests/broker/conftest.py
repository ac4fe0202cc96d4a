"""Services for the tests of the command line."""

from tests.service import (
    _migrated_template,  # noqa: F401
    migrated_url,  # noqa: F401
    served,  # noqa: F401
)
