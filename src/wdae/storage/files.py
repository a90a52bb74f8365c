"""Files that are either the old or the new one, whole: a temporary name, a flush, then a rename."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdae.errors import StorageError

if TYPE_CHECKING:
    from torch import Tensor

_SUFFIX = ".tmp"


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path; the file written there takes the place of ``path`` when the body ends.

    On any exception, and when the disk is full, the temporary file is removed and the old file survives.
    The path lies in a hidden folder beside the target, so that its suffix is kept for libraries that go by
    it, and whatever they leave there when killed is swept away by the next writer.
    """
    target = _resolved(path)
    if target.exists() and not target.is_file():
        raise StorageError(f"{target} exists and is not a file; choose another name")
    folder = _temporary(target)
    temporary = folder / target.name
    try:
        folder.mkdir()
        yield temporary
        if not temporary.is_file():
            raise StorageError(f"nothing was written for {target}")
        _flush(temporary)
        temporary.replace(target)
        _flush_folder(target.parent)
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling folder that becomes ``path`` when the body ends; nothing may be there yet."""
    refuse_existing(path)
    target = _resolved(path)
    temporary = _temporary(target)
    try:
        temporary.mkdir()
        yield temporary
        for folder, _, names in os.walk(temporary, topdown=False):
            for name in names:
                _flush(Path(folder, name))
            _flush_folder(Path(folder))
        if target.exists():  # a rename would quietly replace an empty folder
            raise StorageError(f"{target} appeared while it was being written; choose another name")
        temporary.rename(target)
        _flush_folder(target.parent)
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(path: str | Path) -> None:
    """Raise where something is at ``path`` already: to be told before the work, not after it."""
    if Path(path).exists() or Path(path).is_symlink():
        raise StorageError(f"{path} exists already; remove it or choose another name")


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, atomically and with its line ends as they are."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` to ``path`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    """The value in the JSON file ``path``."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _cannot_read(Path(path), error) from error
    except ValueError as error:  # bad JSON and bad UTF-8 alike
        raise StorageError(f"{path} is truncated or altered: not valid JSON ({error})") from error


def save_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors to a safetensors file, atomically.

    Tensors on any device and with any strides; two that share memory are written as two.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    rows: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        row = tensor.detach().cpu().contiguous()
        storage = row.untyped_storage().data_ptr()
        rows[name] = row.clone() if storage in seen else row  # the format refuses shared memory
        seen.add(storage)
    with atomic_file(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(rows, temporary, metadata=dict(metadata) if metadata else None)
        except SafetensorError as error:  # the library reports a full disk in its own class
            raise _cannot_write(Path(path), _os_error(error)) from error
        temporary.chmod(mode)  # the library leaves files that only their owner may read


def load_tensors(path: str | Path, *, device: str = "cpu") -> dict[str, Tensor]:
    """All tensors of the safetensors file ``path``; on the CPU they are mapped, not read, until used."""
    return open_tensors(path, device=device)[0]


def open_tensors(path: str | Path, *, device: str = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """As :func:`load_tensors`, together with the file's metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt", device=device) as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except OSError as error:
        raise _cannot_read(Path(path), error) from error
    except (SafetensorError, ValueError) as error:
        raise StorageError(
            f"{path} is truncated or altered: not a whole safetensors file ({error})"
        ) from error


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _cannot_read(Path(path), error) from error


def _resolved(path: str | Path) -> Path:
    """The file itself where ``path`` is a link, in a folder that exists."""
    target = Path(path)
    try:
        target = target.resolve() if target.is_symlink() else target.absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(target, error) from error
    return target


def _temporary(target: Path) -> Path:
    """A fresh hidden folder's name beside ``target``; the leavings of killed writers are swept away first."""
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    prefix = f".{target.name}.{host}-"
    for stale in target.parent.iterdir():
        if stale.name.startswith(prefix) and stale.name.endswith(_SUFFIX):
            owner = stale.name.removeprefix(prefix).split("-")[0]
            if owner.isdigit() and not _alive(int(owner)):
                shutil.rmtree(stale, ignore_errors=True)
    return target.with_name(f"{prefix}{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}")


def _alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere, asking would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(path: Path) -> None:
    if os.name != "posix":  # folders cannot be opened elsewhere
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(path: Path, error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"the disk is full: cannot write {path}; free some space. What was there is kept")
    reason = error.strerror or str(error)
    return StorageError(f"cannot write {path}: {reason}; what was there is kept")


def _os_error(error: Exception) -> OSError:
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))


def _cannot_read(path: Path, error: OSError) -> StorageError:
    if not path.exists():
        return StorageError(f"{path} does not exist")
    return StorageError(f"cannot read {path}: {error.strerror or error}")
