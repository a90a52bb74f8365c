"""Tars of WebDataset, and buckets: the same pictures, classes and parts as in folders."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wdae.data import FileSource, open_dataset
from wdae.data.remote import PlacedSource
from wdae.data.source import FileNames
from wdae.errors import DataError
from wdae.parts import Part

CLASSES = {"base": ("cat", "dog"), "novel": ("okapi",)}


def encoded(number: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def items() -> Iterator[tuple[str, str, str, bytes]]:
    number = 0
    for part, names in CLASSES.items():
        for name in names:
            for i in range(3):
                yield part, name, f"{name}-{i}", encoded(number)
                number += 1


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, name, key, data in items():
        place = tmp_path / "folder" / part / name
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{key}.png").write_bytes(data)
    return tmp_path / "folder"


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    for part in CLASSES:
        members = [(f"{key}.png", data) for p, _, key, data in items() if p == part]
        members += [(f"{key}.cls", name.encode()) for p, name, key, _ in items() if p == part]
        write_tar(tmp_path / "tars" / part / "000.tar", members)
    return tmp_path / "tars"


def same(one: Path | str, two: Path | str) -> None:
    a, b = open_dataset(one), open_dataset(two)
    assert a.class_names == b.class_names and len(a) == len(b) == 9
    assert np.array_equal(a.labels, b.labels) and np.array_equal(a.parts, b.parts)
    for i in range(len(a)):
        assert np.array_equal(a.read(i), b.read(i))
        assert a.source.digest(i) == b.source.digest(i)
    assert len(b.select([0, 4])) == 2 and b.source.stamp() != b.select([0, 4]).source.stamp()


def test_tars_hold_what_folders_hold(folder: Path, tars: Path) -> None:
    same(folder, tars)
    images = open_dataset(tars)
    assert images.describe(0).endswith("base/000.tar/cat-0.png")
    assert images.counts(Part.NOVEL).sum() == 3
    assert len(open_dataset(tars / "base" / "000.tar")) == 6


def test_a_source_with_whole_paths_reads_the_same_in_another_place(
    folder: Path, tars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    for place in (folder.name, tars.name):
        source = open_dataset(place).source
        assert isinstance(source, FileSource | PlacedSource)
        before, sent = [source.digest(i) for i in range(9)], pickle.dumps(source.absolute())
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir("/")
            there = pickle.loads(sent)
            assert [there.digest(i) for i in range(9)] == before
            assert there.select([8, 0]).digest(1) == before[0]
            with pytest.raises(DataError):
                source.digest(0)


def test_tars_that_say_too_little_are_named(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("one.png", encoded(0)), ("two.png", encoded(1)), ("two.cls", b"cat")])
    with pytest.raises(DataError, match=r"1 pictures have no class: .*a\.tar/one; put KEY\.cls beside"):
        open_dataset(tmp_path / "a.tar")
    (tmp_path / "b.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(DataError, match=r"b\.tar is no tar of pictures"):
        open_dataset(tmp_path / "b.tar")
    write_tar(tmp_path / "c.tar", [("one.txt", b"cat")])
    with pytest.raises(DataError, match="no pictures"):
        open_dataset(tmp_path / "c.tar")
    write_tar(tmp_path / "d.tar", [("one.png", b"no picture"), ("one.cls", b"cat")])
    with pytest.raises(DataError, match=r"d\.tar/one\.png"):
        open_dataset(tmp_path / "d.tar").read(0)


def test_a_tar_that_lies_about_a_size_is_refused(tmp_path: Path) -> None:
    data = encoded(0)
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content, more in (
            ("one.png", data, {"GNU.sparse.major": "1", "GNU.sparse.realsize": str(2**70)}),
            ("one.cls", b"cat", {}),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), more
            tar.addfile(info, io.BytesIO(content))
    with pytest.raises(DataError):
        open_dataset(tmp_path / "a.tar").read(0)


def test_names_are_kept_whatever_they_hold() -> None:
    names = ["a.jpg", "", "日本/é.jpg", "not utf-8 \udcff", "half a pair \ud800"]
    kept = FileNames(names)
    assert list(kept) == names and list(kept[1:4]) == names[1:4] and kept[-1] == names[-1]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    server_of = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    from wdae.data.remote import _bucket_of

    _bucket_of.cache_clear()
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("photos")
    yield "s3://photos"
    server.stop()
    _bucket_of.cache_clear()


def test_a_bucket_holds_what_folders_hold(bucket: str, folder: Path, tars: Path, tmp_path: Path) -> None:
    import s3fs

    files = s3fs.S3FileSystem(skip_instance_cache=True)
    files.put(str(folder), "photos/folder", recursive=True)
    files.put(str(tars), "photos/tars", recursive=True)
    lines = ["path,label,part", *(f"folder/{p}/{n}/{k}.png,{n},{p}" for p, n, k, _ in items())]
    files.pipe_file("photos/list.csv", "\n".join(lines).encode())
    for place in ("folder", "tars", "list.csv"):
        same(folder, f"{bucket}/{place}")
        same(folder, Path(f"{bucket}/{place}"))  # a slash is lost on the way through a recipe
    before = open_dataset(f"{bucket}/folder").source.stamp()
    files.pipe_file("photos/folder/base/cat/cat-0.png", encoded(77))
    assert open_dataset(f"{bucket}/folder").source.stamp() != before
    with pytest.raises(DataError, match="does not exist, or nothing is in it"):
        open_dataset(f"{bucket}/nowhere")
    with pytest.raises(DataError, match="cannot be read"):
        open_dataset("s3://no-such-bucket/x.csv")
