"""Manifests by a forger who recomputes the checksum: everything is refused before it is used."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from pydantic import Field

from wdae.errors import StorageError
from wdae.storage import manifest, records
from wdae.storage.manifest import Manifest
from wdae.storage.tensors import save_tensors


class Shelf(Manifest):
    FORMAT, VERSION, FILE, NOUN = "wdae-shelf", 2, "shelf.json", "a shelf"
    REMEDY = "; make one with: wdae shelf"

    books: Annotated[tuple[str, ...], Field(max_length=3)]
    weight: float = 1.0


def seal(value: dict[str, Any]) -> dict[str, Any]:
    value = {key: inner for key, inner in value.items() if key != "sha256"}
    return value | {"sha256": hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()}


def forge(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads((folder / "shelf.json").read_text())
    value = change(value) or value
    (folder / "shelf.json").write_text(json.dumps(seal(value)))


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    save_tensors(folder / "pages.safetensors", {"a": torch.arange(6.0).view(2, 3)})
    files = {"pages.safetensors": manifest.entry(folder / "pages.safetensors")}
    manifest.write(Shelf, folder, {"books": ["Emma", "Ulysses"], "files": files})
    return folder


def opened(folder: Path, *, verify: bool = True) -> torch.Tensor:
    found = manifest.read(Shelf, folder)
    manifest.check_files(folder, found, verify=verify)
    return manifest.read_tensors(folder, found, "pages.safetensors", verify=verify)["a"]


def test_a_manifest_comes_back(shelf: Path) -> None:
    assert manifest.read(Shelf, shelf).books == ("Emma", "Ulysses")
    assert torch.equal(opened(shelf), torch.arange(6.0).view(2, 3))
    assert manifest.is_kind(Shelf, shelf)
    assert not manifest.is_kind(Shelf, shelf.parent)


def test_all_faults_are_told_at_once(shelf: Path) -> None:
    forge(shelf, lambda value: value | {"books": [1], "weight": True, "colour": "red", "written_by": None})
    with pytest.raises(StorageError) as error:
        manifest.read(Shelf, shelf)
    for word in ("'books.0'", "'weight'", "unknown key 'colour'", "'written_by'"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "wdae-bank"}, "not the manifest of a shelf"),
        ({"version": 3}, "shelf format 3, newer than 2.*upgrade wdae"),
        ({"version": True}, "its format version is True"),
        ({"version": "2"}, "its format version is '2'"),
        ({"version": 0}, "its format version is 0"),
        ({"books": ["a", "b", "c", "d"]}, "at most 3 items"),
        ({"files": []}, "'files' must be"),
        ({"files": {"pages.safetensors": {}}}, "pages.safetensors.bytes' is missing.*sha256' is missing"),
        ({"files": {"pages.safetensors": {"bytes": 1, "sha256": "ff"}}}, "sha256' must be"),
        ({"files": {"pages.safetensors": {"bytes": -1, "sha256": "f" * 64}}}, "bytes' must be"),
        ({"files": {"../outside": {"bytes": 1, "sha256": "f" * 64}}}, "files"),
        ({"files": {"/etc/passwd": {"bytes": 1, "sha256": "f" * 64}}}, "files"),
        ({"files": {".hidden": {"bytes": 1, "sha256": "f" * 64}}}, "files"),
        ({"files": {"x" * 5_000: {"bytes": 1, "sha256": "f" * 64}}}, "files"),
        ({"files": {"a\x00b": {"bytes": 1, "sha256": "f" * 64}}}, "files"),
        ({"files": {}}, "not listed in shelf.json"),
        ({"files": {"none.safetensors": {"bytes": 1, "sha256": "f" * 64}}}, "is missing; copy"),
    ],
)
def test_a_forged_manifest_is_refused(shelf: Path, change: dict[str, Any], words: str) -> None:
    forge(shelf, lambda value: value | change)
    with pytest.raises(StorageError, match=words) as error:
        opened(shelf)
    assert len(str(error.value)) < 1_000


def test_an_altered_manifest_is_refused(shelf: Path) -> None:
    file = shelf / "shelf.json"
    file.write_text(file.read_text().replace("Emma", "Anna"))
    with pytest.raises(StorageError, match="checksum does not match"):
        opened(shelf)
    file.write_text(
        json.dumps({key: v for key, v in json.loads(file.read_text()).items() if key != "sha256"})
    )
    with pytest.raises(StorageError, match="checksum does not match"):
        opened(shelf)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * 100_000, "nested deeper"),
        (b'{"format":' * 40 + b"1" + b"}" * 40, "nested deeper"),
        (b'{"a": ["[[[["]}', "not the manifest"),
        (b'{"a": 1, "a": 2}', "given twice"),
        (rb'{"a": "\ud800"}', "surrogates not allowed"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": 1e999}', "too large a number"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not valid JSON"),
        (b'"\xff"', "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[" + b"1," * 600_000 + b"1]", "more than 500000 values"),
        (b" " * (32 * 2**20 + 1), "at most 33554432 are read"),
    ],
)
def test_hostile_json_is_refused(shelf: Path, text: bytes, words: str) -> None:
    (shelf / "shelf.json").write_bytes(text)
    with pytest.raises(StorageError, match=words):
        manifest.read(Shelf, shelf)


def test_lone_surrogates_and_deep_text_do_not_confuse(shelf: Path) -> None:
    (shelf / "shelf.json").write_text(json.dumps(seal({"format": "wdae-shelf", "version": 2, "x": "\ud800"})))
    with pytest.raises(StorageError, match="altered"):
        manifest.read(Shelf, shelf)


@pytest.mark.parametrize("verify", [True, False])
def test_links_pipes_and_folders_are_never_read(shelf: Path, verify: bool) -> None:
    pages = shelf / "pages.safetensors"
    elsewhere = pages.rename(shelf.parent / "elsewhere.safetensors")
    pages.symlink_to(elsewhere)
    with pytest.raises(StorageError, match="is a link"):
        opened(shelf, verify=verify)
    pages.unlink()
    os.mkfifo(pages)
    with pytest.raises(StorageError, match="not a regular file"):
        opened(shelf, verify=verify)
    pages.unlink()
    pages.mkdir()
    with pytest.raises(StorageError, match="not a regular file"):
        opened(shelf, verify=verify)


def test_the_manifest_itself_is_no_link(shelf: Path) -> None:
    moved = (shelf / "shelf.json").rename(shelf.parent / "shelf.json")
    (shelf / "shelf.json").symlink_to(moved)
    with pytest.raises(StorageError, match="is a link"):
        manifest.read(Shelf, shelf)


def test_only_hashing_is_skipped_without_verifying(shelf: Path) -> None:
    pages = shelf / "pages.safetensors"
    data = bytearray(pages.read_bytes())
    data[-1] ^= 1
    pages.write_bytes(data)
    assert opened(shelf, verify=False).shape == (2, 3)
    with pytest.raises(StorageError, match="checksum does not match"):
        opened(shelf)
    pages.write_bytes(data[:-1])
    with pytest.raises(StorageError, match="truncated or altered"):
        opened(shelf, verify=False)


def test_large_files_are_hashed_in_threads_which_find_the_same(
    shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_MANY_BYTES", 0)
    known = manifest.read(Shelf, shelf)
    manifest.check_files(shelf, known)
    pages = shelf / "pages.safetensors"
    data = bytearray(pages.read_bytes())
    data[-1] ^= 1
    pages.write_bytes(data)
    with pytest.raises(StorageError, match=r"pages\.safetensors is altered: its checksum does not match"):
        manifest.check_files(shelf, known)
    manifest.check_files(shelf, known, verify=False)
    with manifest.without_checksums():
        manifest.check_files(shelf, known)
    pages.unlink()
    with manifest.without_checksums(), pytest.raises(StorageError, match="is missing"):
        manifest.check_files(shelf, known)


def test_an_older_version_is_upgraded_and_an_ill_formed_one_refused(shelf: Path) -> None:
    def older(value: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in value.items() if k != "books"} | {"version": 1, "titles": ["Emma"]}

    class Old(Shelf):
        UPGRADES = {  # noqa: RUF012
            1: lambda value, folder: (
                {k: v for k, v in value.items() if k != "titles"} | {"books": [*value["titles"], folder.name]}
            )
        }

    forge(shelf, older)
    assert manifest.read(Old, shelf).books == ("Emma", "shelf")
    forge(shelf, lambda value: value | {"titles": 5})
    with pytest.raises(StorageError, match="not a shelf of version 1"):
        manifest.read(Old, shelf)


def test_what_could_not_be_read_is_not_written(shelf: Path) -> None:
    before = (shelf / "shelf.json").read_bytes()
    with pytest.raises(StorageError, match="books"):
        manifest.write(Shelf, shelf, {"books": ["a"] * 4, "files": {}})
    assert (shelf / "shelf.json").read_bytes() == before


def header(folder: Path, text: bytes, data: bytes = b"") -> Path:
    path = folder / "forged.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def slot(shape: Any = (1,), offsets: Any = (0, 4), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "entries",
    [
        {"a": slot(shape=[2**62, 2**62], offsets=[0, 4])},
        {"a": slot(shape=[-1, -1], offsets=[0, 4])},
        {"a": slot(shape=[True], offsets=[0, 4])},
        {"a": slot(shape=[1.0])},
        {"a": slot(shape="1")},
        {"a": slot(offsets=[0])},
        {"a": slot(offsets=[4, 8])},
        {"a": slot(offsets=[-4, 0])},
        {"a": slot(dtype="F31")},
        {"a": slot(dtype=["F32"])},
        {"a": slot(shape=[1] * 100)},
        {"a": slot(), "b": slot()},
        {"a": []},
        {"a": None},
        {"__metadata__": {"a": 1}, "a": slot()},
        {"__metadata__": [], "a": slot()},
        [],
        7,
        {},
    ],
)
def test_forged_headers_of_tensors_are_refused(tmp_path: Path, entries: Any) -> None:
    from wdae.storage.tensors import load_tensors

    path = header(tmp_path, json.dumps(entries).encode(), b"\0\0\0\0")
    with pytest.raises(StorageError, match="not a whole safetensors file"):
        load_tensors(path)


def test_headers_of_tensors_are_bounded(tmp_path: Path) -> None:
    from wdae.storage.tensors import load_tensors

    path = tmp_path / "long.safetensors"
    with path.open("wb") as file:
        file.write((2**25).to_bytes(8, "little"))
        file.truncate(2**26)
    with pytest.raises(StorageError, match="at most 16777216 are read"):
        load_tensors(path)
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(StorageError, match="cut short"):
        load_tensors(path)
    many = {f"t{i}": slot([0], [0, 0]) for i in range(50_001)}
    with pytest.raises(StorageError, match="at most 50000"):
        load_tensors(header(tmp_path, json.dumps(many).encode()))
    assert records.MAX_DEPTH < 200  # pydantic's own parser refuses beyond that
