"""Where pictures and starting models are kept: a folder, or a bucket (``s3://bucket/folder``); by id alone.

No name of a stranger becomes part of a path: ids are checked to be what we make them of.
"""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from wdae.errors import MissingExtraError, RecipeError, StorageError
from wdae.storage.files import atomic_file, make_folder, write_bytes

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_STARTING, _INCOMING = "starting", "incoming"


class PictureStore(ABC):
    """What both kinds do. What `put` returned from is on disk."""

    @staticmethod
    def open(url: str) -> PictureStore:
        """The store at a folder or an ``s3://`` address."""
        scheme, found, _ = url.partition("://")
        if not found or scheme == "file":
            return FolderStore(Path(url.removeprefix("file://")))
        if scheme == "s3":
            return BucketStore(url)
        raise RecipeError(f"pictures are kept in a folder or at s3://bucket/folder, not at {scheme}://")

    def put(self, model: str, picture: str, data: bytes) -> None:
        """Keep a picture."""
        self._write(_key(model, picture, ".jpg"), data)

    def get(self, model: str, picture: str) -> bytes:
        """A picture; KeyError where there is none."""
        return self._read(_key(model, picture, ".jpg"))

    def delete(self, model: str, picture: str) -> None:
        """Remove a picture for good; that it is gone already is no error."""
        self._remove(_key(model, picture, ".jpg"))

    def delete_model(self, model: str) -> None:
        """Remove all pictures of a model for good."""
        self._remove_all(_key(model))

    def pictures(self, model: str) -> list[str]:
        """The ids of the pictures of a model."""
        return sorted(name.removesuffix(".jpg") for name in self._names(_key(model)))

    def put_starting(self, digest: str, data: bytes) -> None:
        """Keep the zip of a starting model."""
        self._write(_key(_STARTING, digest, ".zip"), data)

    def get_starting(self, digest: str) -> bytes:
        """The zip of a starting model; KeyError where there is none."""
        return self._read(_key(_STARTING, digest, ".zip"))

    def has_starting(self, digest: str) -> bool:
        """Whether a starting model is kept."""
        return self._exists(_key(_STARTING, digest, ".zip"))

    def put_incoming(self, job: str, file: Path) -> None:
        """Keep what a job works on, until it is done: any machine may take the job."""
        self._copy_in(file, _key(_INCOMING, job, ".zip"))

    def fetch_incoming(self, job: str, file: Path) -> None:
        """Copy what a job works on to a file; KeyError where there is none."""
        self._copy_out(_key(_INCOMING, job, ".zip"), file)

    def delete_incoming(self, job: str) -> None:
        """Remove what a job worked on."""
        self._remove(_key(_INCOMING, job, ".zip"))

    def put_part(self, job: str, number: int, data: bytes) -> None:
        """Keep a part of what a job gives."""
        self._write(_key(f"job-{job}", f"{number:09d}", ".jsonl"), data)

    def parts(self, job: str) -> Iterator[bytes]:
        """What a job gave, part by part, in order."""
        for name in sorted(self._names(_key(f"job-{job}"))):
            yield self._read(f"job-{job}/{name}")

    def delete_parts(self, job: str) -> None:
        """Remove what a job gave."""
        self._remove_all(_key(f"job-{job}"))

    def has(self, model: str, picture: str) -> bool:
        """Whether a picture is kept."""
        return self._exists(_key(model, picture, ".jpg"))

    @abstractmethod
    def check(self) -> None:
        """Raise where the store cannot be reached."""

    @abstractmethod
    def _write(self, key: str, data: bytes) -> None: ...
    @abstractmethod
    def _read(self, key: str) -> bytes: ...
    @abstractmethod
    def _exists(self, key: str) -> bool: ...
    @abstractmethod
    def _remove(self, key: str) -> None: ...
    @abstractmethod
    def _remove_all(self, key: str) -> None: ...
    @abstractmethod
    def _names(self, key: str) -> list[str]: ...
    @abstractmethod
    def _copy_in(self, file: Path, key: str) -> None: ...
    @abstractmethod
    def _copy_out(self, key: str, file: Path) -> None: ...


class FolderStore(PictureStore):
    """A folder. A file is there whole or not at all, also after a loss of power."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        make_folder(self.folder)

    def check(self) -> None:
        """Raise where the folder is gone."""
        if not self.folder.is_dir():
            raise StorageError(f"the folder of pictures is gone: {self.folder}")

    def _write(self, key: str, data: bytes) -> None:
        write_bytes(self.folder / key, data)

    def _read(self, key: str) -> bytes:
        try:
            return (self.folder / key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None

    def _exists(self, key: str) -> bool:
        return (self.folder / key).is_file()

    def _remove(self, key: str) -> None:
        (self.folder / key).unlink(missing_ok=True)

    def _remove_all(self, key: str) -> None:
        shutil.rmtree(self.folder / key, ignore_errors=True)

    def _names(self, key: str) -> list[str]:
        folder = self.folder / key
        return (
            [file.name for file in folder.iterdir() if not file.name.startswith(".")]
            if folder.is_dir()
            else []
        )

    def _copy_in(self, file: Path, key: str) -> None:
        with atomic_file(self.folder / key) as temporary:
            shutil.copyfile(file, temporary)

    def _copy_out(self, key: str, file: Path) -> None:
        try:
            shutil.copyfile(self.folder / key, file)
        except FileNotFoundError:
            raise KeyError(key) from None


class BucketStore(PictureStore):
    """A bucket of S3, or of what speaks like it (``AWS_ENDPOINT_URL``); keys by AWS's variables."""

    def __init__(self, url: str) -> None:
        try:
            import s3fs
        except ImportError as error:
            raise MissingExtraError("s3fs", "serve", "keeping pictures in a bucket") from error
        self.root = url.removeprefix("s3://").rstrip("/")
        if not self.root:
            raise RecipeError("s3:// needs a bucket: s3://bucket or s3://bucket/folder")
        self.files: Any = s3fs.S3FileSystem(
            use_listings_cache=False,
            skip_instance_cache=True,
            config_kwargs={"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 3}},
        )

    def check(self) -> None:
        """Raise where the bucket cannot be reached."""
        self._tried(self.files.ls, self.root.split("/")[0])

    def _write(self, key: str, data: bytes) -> None:
        self._tried(self.files.pipe_file, f"{self.root}/{key}", data)

    def _read(self, key: str) -> bytes:
        found: bytes = self._tried(self.files.cat_file, f"{self.root}/{key}", key=key)
        return found

    def _exists(self, key: str) -> bool:
        return bool(self._tried(self.files.exists, f"{self.root}/{key}"))

    def _remove(self, key: str) -> None:
        with suppress(KeyError):
            self._tried(self.files.rm_file, f"{self.root}/{key}", key=key)

    def _remove_all(self, key: str) -> None:
        names = [f"{self.root}/{key}/{name}" for name in self._names(key)]
        if names:
            self._tried(self.files.rm, names)

    def _names(self, key: str) -> list[str]:
        try:
            found = self._tried(self.files.find, f"{self.root}/{key}", key=key)
        except KeyError:
            return []
        return [str(name).rsplit("/", 1)[1] for name in found]

    def _copy_in(self, file: Path, key: str) -> None:
        self._tried(self.files.put_file, str(file), f"{self.root}/{key}")

    def _copy_out(self, key: str, file: Path) -> None:
        self._tried(self.files.get_file, f"{self.root}/{key}", str(file), key=key)

    def _tried(self, work: Any, *arguments: Any, key: str | None = None) -> Any:
        try:
            return work(*arguments)
        except FileNotFoundError as error:
            if key is not None:
                raise KeyError(key) from None
            raise StorageError(f"there is no s3://{self.root}; make the bucket first") from error
        except Exception as error:  # botocore's and aiohttp's errors have no root of their own
            message = f"s3://{self.root} cannot be used: {str(error)[:200]}"
            raise StorageError(message) from OSError(message)


def _key(model: str, name: str | None = None, suffix: str = "") -> str:
    for one in (model,) if name is None else (model, name):
        if not _ID.fullmatch(one):
            raise KeyError(one)  # nothing that we made has such an id
    return model if name is None else f"{model}/{name}{suffix}"
