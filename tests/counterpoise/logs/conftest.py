from tests.log_support import log, log_url

__all__ = ["log", "log_url"]
