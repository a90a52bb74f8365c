"""Teach a trained classifier new classes from a few pictures each, without forgetting the old ones."""

from wdae.version import __version__

__all__ = ["__version__"]
