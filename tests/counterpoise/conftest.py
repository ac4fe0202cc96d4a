"""Services for the tests of what users import."""

from tests.service import (
    _migrated_template,  # noqa: F401
    migrated_url,  # noqa: F401
    served,  # noqa: F401
    service,  # noqa: F401
    services,  # noqa: F401
)
