"""What a fuzzed case does outside its folder: what it opens, changes and starts; asked of the system too."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import Any

CANARY = "PWNED"
"""The file that hostile code makes; a case that starts a program with its name is caught too."""


class Guard:
    """Watches what the interpreter opens and starts while a case runs."""

    place: Path | None = None
    memory = 0

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.place is None:
            return
        if event in ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "marshal.loads"):
            if event != "marshal.loads":  # what imports of our own modules do
                self.seen.append(f"{event} {arguments!r}"[:200])
        elif event == "subprocess.Popen" and CANARY in repr(arguments):
            self.seen.append(f"{event} {arguments!r}"[:200])
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            self._opened(os.fsdecode(arguments[0]), arguments[2])
        elif event in _CHANGES:
            self._changed(event, arguments)

    def _changed(self, event: str, arguments: tuple[Any, ...]) -> None:
        place, self.place = self.place, None
        try:
            paths, folders = _CHANGES[event]
            for at, folder in zip(paths, folders, strict=True):
                if isinstance(arguments[at], (str, bytes)):
                    number = arguments[folder] if folder < len(arguments) else -1
                    base = Path.cwd() if number in (-1, None) else Path(f"/proc/self/fd/{number}").readlink()
                    path = base / os.fsdecode(arguments[at])
                    real = Path(os.path.realpath(path.parent), path.name)
                    if place is not None and not real.is_relative_to(place) and not _may_write(real):
                        self.seen.append(f"{event} {real}"[:200])
        except (OSError, ValueError):
            pass
        finally:
            self.place = place

    def _opened(self, name: str, flags: Any) -> None:
        place, self.place = self.place, None
        try:
            path = Path.cwd() / name
            if isinstance(flags, int) and flags & os.O_NOFOLLOW and path.is_symlink():
                return  # refused by the system
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            real = Path(os.path.realpath(path))
            if place is not None and real.is_relative_to(place / "outside"):
                self.seen.append(f"opened {name[:200]}")
            elif writes and place is not None and not real.is_relative_to(place) and not _may_write(real):
                self.seen.append(f"wrote {name[:200]}")
        except (OSError, ValueError):
            pass
        finally:
            self.place = place


_CHANGES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "os.remove": ((0,), (1,)),
    "os.rmdir": ((0,), (1,)),
    "os.mkdir": ((0,), (2,)),
    "os.rename": ((0, 1), (2, 3)),
    "os.link": ((1,), (3,)),
    "os.symlink": ((1,), (2,)),
    "os.truncate": ((0,), (9,)),
    "os.chmod": ((0,), (2,)),
}
"""Events of the interpreter that change something: where the paths stand, and the folders they start from."""


def watch(folder: Path) -> int:
    """Let the system tell of everything that is opened or changed in a folder, by libraries too."""
    if not sys.platform.startswith("linux"):
        return -1
    libc = ctypes.CDLL(None)
    number = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    libc.inotify_add_watch(number, os.fsencode(folder), 0x2 | 0x4 | 0x20 | 0xC0 | 0x100 | 0x200)
    return number


def watched(number: int) -> list[str]:
    """What the system has told since :func:`watch`."""
    if number < 0:
        return []
    try:
        data = os.read(number, 4096)
    except BlockingIOError:
        return []
    finally:
        os.close(number)
    seen, at = [], 0
    while at < len(data):
        _, kind, _, size = struct.unpack_from("iIII", data, at)
        name = data[at + 16 : at + 16 + size].rstrip(b"\0").decode(errors="replace")
        if not kind & 0x40000000:  # somebody who lists the folders of this machine is not meant
            seen.append(f"the system says that outside/{name} was opened or changed")
        at += 16 + size
    return seen


def _may_write(path: Path) -> bool:
    return (
        (str(path).startswith(("/dev/", "/proc/")) and "shm" not in path.parts)
        or "__pycache__" in path.parts
        or "cache" in str(path).lower()
    )
