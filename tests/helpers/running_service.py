"""``wdae serve`` as a process of its own, which can be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import httpx
from postgres_server import free_port


class RunningService:
    """A service on this machine; nobody needs a key."""

    def __init__(self, data: Path, *options: str, port: int | None = None, start: bool = True) -> None:
        self.data, self.options, self.port = data, options, port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        data.mkdir(parents=True, exist_ok=True)
        self.log = data / "service.log"
        if start:
            self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, wait: float = 240.0) -> None:
        """Start, and wait until it is ready."""
        command = [sys.executable, "-m", "wdae.cli.main", "serve", "--data", str(self.data)]
        command += ["--port", str(self.port), "--limit", "requests=100000", *self.options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        if wait:
            self.wait(wait)

    def wait(self, seconds: float = 240.0) -> None:
        """Wait until it is ready."""
        assert self.process is not None
        until = time.monotonic() + seconds
        while True:
            try:
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the service is not ready; its log ends: {self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def client(self, timeout: float = 60.0) -> httpx.Client:
        """A client of its API."""
        return httpx.Client(base_url=f"{self.url}/api/v1", timeout=timeout)

    def descendants(self) -> dict[int, str]:
        """Process ids and command lines of what it has started."""
        assert self.process is not None
        parents: dict[int, int] = {}
        words: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except (OSError, IndexError, ValueError):
                continue
        found, fresh = {}, {self.process.pid}
        while fresh:
            fresh = {pid for pid, parent in parents.items() if parent in fresh}
            found |= {pid: words.get(pid, "") for pid in fresh}
        return found

    def decoders(self) -> list[int]:
        """Process ids of its decoders."""
        return [pid for pid, words in self.descendants().items() if "uploads.decoder" in words]

    def workers(self) -> list[int]:
        """Process ids of its workers, where it has several."""
        return [pid for pid, words in self.descendants().items() if "multiprocessing.spawn" in words]

    def memory(self) -> int:
        """Bytes in memory of all its processes."""
        assert self.process is not None
        total = 0
        for pid in (self.process.pid, *self.descendants()):
            try:
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except OSError:
                continue
        return total

    def kill(self) -> None:
        """``kill -9``, of its workers too."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end; its status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.kill()
        return int(self.process.returncode)
