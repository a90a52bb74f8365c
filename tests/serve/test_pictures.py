"""The same promises of a folder and of a bucket (a real server that speaks S3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from wdae.errors import RecipeError, StorageError
from wdae.serve.pictures import PictureStore

HOSTILE = [
    "..",
    ".",
    "",
    "../other",
    "a/b",
    "a\\b",
    "%2e%2e%2fother",
    "a%00b",
    "a\0b",
    "a#b",
    "a?b",
    "a*b",
    "/etc/passwd",
    "C:",
    "a\nb",
    "é",
    "\u202egpj",
    "x" * 200,
]


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PictureStore:
    if request.param == "folder":
        return PictureStore.open(str(tmp_path / "pictures"))
    return PictureStore.open(request.getfixturevalue("bucket"))


def test_what_was_put_is_there_until_it_is_deleted(store: PictureStore) -> None:
    store.check()
    store.put("m1", "p1", b"one")
    store.put("m1", "p2", b"two")
    store.put("m2", "p1", b"other")
    assert (store.get("m1", "p1"), store.get("m2", "p1")) == (b"one", b"other")
    assert store.pictures("m1") == ["p1", "p2"] and store.pictures("m3") == []
    store.put("m1", "p1", b"anew")
    assert store.get("m1", "p1") == b"anew"
    store.delete("m1", "p1")
    store.delete("m1", "p1")
    with pytest.raises(KeyError):
        store.get("m1", "p1")
    store.delete_model("m1")
    store.delete_model("m1")
    assert store.pictures("m1") == [] and store.get("m2", "p1") == b"other"


def test_starting_models_and_uploads_of_jobs(store: PictureStore, tmp_path: Path) -> None:
    store.put_starting("d1", b"zip")
    assert store.get_starting("d1") == b"zip"
    (tmp_path / "in.zip").write_bytes(b"many pictures")
    store.put_incoming("j1", tmp_path / "in.zip")
    store.fetch_incoming("j1", tmp_path / "out.zip")
    assert (tmp_path / "out.zip").read_bytes() == b"many pictures"
    store.delete_incoming("j1")
    with pytest.raises(KeyError):
        store.fetch_incoming("j1", tmp_path / "out2.zip")


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_but_ids_is_a_place(store: PictureStore, tmp_path: Path, name: str) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for model, picture in ((name, "p"), ("m", name)):
        with pytest.raises(KeyError):
            store.put(model, picture, b"x")
        with pytest.raises(KeyError):
            store.get(model, picture)
        with pytest.raises(KeyError):
            store.delete(model, picture)
    with pytest.raises(KeyError):
        store.delete_model(name)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_places_that_are_none(bucket: str, tmp_path: Path) -> None:
    for url in ("http://169.254.169.254/", "ftp://host/x", "memory://x", "s3://"):
        with pytest.raises(RecipeError):
            PictureStore.open(url)
    with pytest.raises(StorageError, match=r"make the bucket first|cannot be used"):
        PictureStore.open("s3://no-such-bucket-here").put("m", "p", b"x")


def test_parts_of_a_result_come_in_order(store: PictureStore) -> None:
    for number in (256, 0, 1024):
        store.put_part("j1", number, b"%d\n" % number)
    assert b"".join(store.parts("j1")) == b"0\n256\n1024\n" and list(store.parts("j2")) == []
    store.delete_parts("j1")
    assert list(store.parts("j1")) == []


def test_it_says_what_it_has(store: PictureStore) -> None:
    store.put("m1", "p1", b"one")
    assert store.has("m1", "p1") and not store.has("m1", "p2")
