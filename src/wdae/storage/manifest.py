"""Manifests: one JSON file in a folder says what belongs to it, with the size and digest of every file.

The one way in and out for every folder format. A manifest is validated before anything of it is used; files
are plain names, regular files and never links; what is not listed is not read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import Field

from wdae.errors import StorageError
from wdae.storage import records
from wdae.storage.files import open_regular, read_bytes, sha256, write_text
from wdae.storage.records import Count, Digest, Record, Text
from wdae.version import __version__

if TYPE_CHECKING:
    from torch import Tensor

MAX_FILES = 10_000
_MANY_BYTES = 2**26  # of fewer, checksums take less than threads are worth

FileName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._+-]{0,199}$")]
"""A file inside a folder: no folders, no hidden names."""
Upgrade = Callable[[dict[str, Any], Path], dict[str, Any]]
"""From version n of a format to n + 1: the manifest as plain data, and its folder."""


class FileEntry(Record):
    """What a manifest says of a file."""

    bytes: Count
    sha256: Digest


class Manifest(Record):
    """What every manifest has; a format is a subclass with its own fields.

    >>> class Note(Manifest):
    ...     FORMAT, VERSION, FILE, NOUN = "wdae-note", 1, "note.json", "a note"
    ...     text: str
    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> _ = write(Note, place.name, {"text": "hello", "files": {}})
    >>> read(Note, place.name).text
    'hello'
    """

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]
    FILE: ClassVar[str]
    """The manifest's own name."""
    NOUN: ClassVar[str]
    """What the folder is, for messages: ``a model``."""
    REMEDY: ClassVar[str] = ""
    """How such a folder is made, for messages: ``; make one with: wdae learn``."""
    SEALED: ClassVar[int] = 1
    """The first version that has a digest of its own and a list of files."""
    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {}
    """By n: from version n to n + 1. Tensors keep their names for good; a new one has a default."""

    format: Text
    version: Annotated[int, Field(ge=1, le=1_000_000)]
    written_by: Text = ""
    files: Annotated[dict[FileName, FileEntry], Field(max_length=MAX_FILES)]
    sha256: Digest


M = TypeVar("M", bound=Manifest)


def write(
    kind: type[M], folder: str | Path, content: Mapping[str, Any], *, version: int | None = None
) -> str:
    """Write or replace a folder's manifest: the moment at which a change takes effect. Returns its digest.

    Args:
        content: the format's own fields and ``files`` (:func:`entry` for each), as plain data.
        version: an older version, where nothing of the newest is used.
    """
    value = {
        "format": kind.FORMAT,
        "version": version or kind.VERSION,
        "written_by": f"wdae {__version__}",
        **content,
    }
    value["sha256"] = digest(value)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    path = Path(folder) / kind.FILE
    records.validate(kind, text.encode(), path)  # what could not be read again is not written
    write_text(path, text + "\n")
    return str(value["sha256"])


def read(kind: type[M], folder: str | Path) -> M:
    """The manifest of a folder, brought up to the newest version."""
    folder = Path(folder)
    path = folder / kind.FILE
    if not os.path.lexists(path):
        raise absent(folder, kind.FILE, kind.NOUN, kind.REMEDY)
    data = read_bytes(path, records.MAX_BYTES, follow=False)
    value = records.parse(data, path)
    if not isinstance(value, dict) or value.get("format") != kind.FORMAT:
        raise StorageError(f"{path} is not the manifest of {kind.NOUN} of wdae")
    version = check_version(value.get("version"), kind.VERSION, kind.NOUN, folder)
    if version >= kind.SEALED:
        given = value.pop("sha256", None)
        if given != digest(value):
            raise StorageError(
                f"{path} is altered: its checksum does not match; copy the folder again, or make it anew"
            )
        value["sha256"] = given
    steps = [number for number in range(version, kind.VERSION) if number in kind.UPGRADES]
    if not steps:
        return records.construct(kind, data, path)
    for number in steps:
        try:
            value = {**kind.UPGRADES[number](value, folder), "version": number + 1}
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise StorageError(
                f"{path} is altered: not {kind.NOUN} of version {version} ({error!r})"
            ) from None
    value.setdefault("sha256", digest(value))
    return records.construct(kind, json.dumps(value), path)


def absent(folder: Path, file: str, noun: str, remedy: str = "") -> StorageError:
    """The error for a folder without a manifest."""
    what = "does not exist" if not folder.exists() else f"has no {file}, so it is not {noun}"
    return StorageError(f"{folder} {what}{remedy}")


def is_kind(kind: type[Manifest], folder: str | Path) -> bool:
    """Whether a folder is meant to be one of this format, as far as its manifest says."""
    path = Path(folder) / kind.FILE
    if not path.is_file():
        return False
    try:
        value = records.parse(read_bytes(path, records.MAX_BYTES, follow=False), path)
    except StorageError:
        return True  # whoever opens it is told what is wrong
    return isinstance(value, dict) and value.get("format") == kind.FORMAT


def check_version(version: Any, newest: int, noun: str, where: str | Path) -> int:
    """A format's version, which must be a number that this code reads."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StorageError(f"{where} is altered: its format version is {records.shown(version)}")
    if version > newest:
        raise StorageError(
            f"{where} has {noun.partition(' ')[2]} format {version}, newer than {newest}, the newest this"
            " version of wdae reads; upgrade wdae"
        )
    return version


_verifying: ContextVar[bool] = ContextVar("verifying", default=True)


@contextmanager
def without_checksums() -> Iterator[None]:
    """Compare no checksums while the body runs: ``wdae COMMAND --no-verify``. Names and sizes still count."""
    token = _verifying.set(False)
    try:
        yield
    finally:
        _verifying.reset(token)


def verifying() -> bool:
    """Whether checksums are compared."""
    return _verifying.get()


def entry(path: str | Path) -> dict[str, Any]:
    """What a manifest says of the file ``path``."""
    return {"bytes": Path(path).stat().st_size, "sha256": sha256(path, follow=False)}


def check_files(folder: str | Path, manifest: Manifest, *, verify: bool = True) -> None:
    """Every listed file is there, regular, of its size and, unless ``verify`` is off, unaltered."""
    verify = verify and verifying()  # threads have a context of their own

    def fault(name: str) -> str | None:
        try:
            with open_listed(folder, name, manifest.files[name]) as file:
                if verify:
                    check_digest(file, manifest.files[name], Path(folder) / name)
        except StorageError as error:
            return str(error)
        return None

    if verify and sum(listed.bytes for listed in manifest.files.values()) > _MANY_BYTES:
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # hashing lets other threads run
            told = list(threads.map(fault, manifest.files))
    else:
        told = [fault(name) for name in manifest.files]
    if found := [one for one in told if one is not None]:
        raise StorageError("; ".join(found))


def open_listed(folder: str | Path, name: str, entry: FileEntry) -> BufferedReader:
    """Open a listed file for reading: regular, no link, of the size that the manifest says."""
    path = Path(folder) / name
    if not os.path.lexists(path):
        raise StorageError(f"{path} is missing; copy the whole folder again")
    file = open_regular(path, follow=False)
    size = os.fstat(file.fileno()).st_size
    if size != entry.bytes:
        file.close()
        raise StorageError(
            f"{path} is truncated or altered: {size} bytes, written as {entry.bytes}; copy it again"
        )
    return file


def read_tensors(
    folder: str | Path, manifest: Manifest, name: str, *, verify: bool = True
) -> dict[str, Tensor]:
    """The tensors of a listed safetensors file, mapped; hashed first unless ``verify`` is off."""
    from wdae.storage.tensors import tensors_in

    with _open_known(folder, manifest, name, verify) as file:
        return tensors_in(file, Path(folder) / name)[0]


def read_arrays(
    folder: str | Path, manifest: Manifest, name: str, *, verify: bool = True
) -> tuple[dict[str, Any], dict[str, str]]:
    """As :func:`read_tensors`, as numpy arrays and without torch; with the file's metadata."""
    from wdae.storage.tensors import arrays_in

    with _open_known(folder, manifest, name, verify) as file:
        return arrays_in(file, Path(folder) / name)


def read_names(folder: str | Path, manifest: Manifest, name: str) -> tuple[list[str], dict[str, str]]:
    """The names of a listed safetensors file's tensors, and its metadata; not hashed."""
    from wdae.storage.tensors import names_in

    with _open_known(folder, manifest, name, False) as file:
        return names_in(file, Path(folder) / name)


def _open_known(folder: str | Path, manifest: Manifest, name: str, verify: bool) -> BufferedReader:
    path = Path(folder) / name
    if name not in manifest.files:
        raise StorageError(
            f"{path} is not listed in {manifest.FILE}, so it is not read; copy the folder again"
        )
    file = open_listed(folder, name, manifest.files[name])
    try:
        if verify:
            check_digest(file, manifest.files[name], path)
    except BaseException:
        file.close()
        raise
    return file


def check_digest(file: BufferedReader, listed: FileEntry, path: Path) -> None:
    """Refuse an open file whose SHA-256 is not the listed one; it is read from its beginning afterwards."""
    if not verifying():
        return
    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    if found != listed.sha256:
        raise StorageError(f"{path} is altered: its checksum does not match; copy it again")


def digest(value: Mapping[str, Any]) -> str:
    """The digest that a JSON object carries of itself, over all its other keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
