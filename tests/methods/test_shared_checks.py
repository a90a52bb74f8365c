"""Every registered method passes the shared checks of ``tests/helpers/method_checks.py``."""

from method_checks import *  # noqa: F403
