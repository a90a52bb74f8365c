"""What a service is started with."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from wdae.serve.limits import Limits

VARIABLE = "WDAE_SERVE"
"""The environment variable that hands the settings to worker processes."""


class Settings(BaseModel):
    """Where the service keeps things, and whom it listens to.

    >>> Settings(data=Path("there")).database_url
    'sqlite:///there/wdae.sqlite'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: Path = Path("wdae-data")
    database: str | None = None
    pictures: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    public: int = 0
    hosts: tuple[str, ...] = ()
    starting: str = "resnet12"
    limits: Limits = Limits()

    @property
    def database_url(self) -> str:
        """As SQLAlchemy takes it."""
        if self.database is None:
            return f"sqlite:///{self.data / 'wdae.sqlite'}"
        scheme, separator, rest = self.database.partition("://")
        return f"{'postgresql+psycopg' if scheme in ('postgresql', 'postgres') else scheme}{separator}{rest}"

    @property
    def pictures_url(self) -> str:
        """A folder, or a URL."""
        return self.pictures or str(self.data / "pictures")

    def to_environment(self) -> None:
        """Leave them for processes that are started from here."""
        os.environ[VARIABLE] = self.model_dump_json()

    @classmethod
    def from_environment(cls) -> Settings:
        """As they were left."""
        return cls.model_validate_json(os.environ.get(VARIABLE, "{}"))
