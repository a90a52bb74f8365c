"""Zips from strangers: slips, links, bombs, nests, lies; each is refused, by itself if it can be."""

from __future__ import annotations

import stat
import struct
import zipfile
from pathlib import Path

import pytest
from stranger_pictures import jpeg

from wdae.errors import DataError
from wdae.serve.uploads.archives import Entry, count_files, read_zip, unpack

LIMITS = {"files": 20, "file_bytes": 2**20, "all_bytes": 4 * 2**20}
GOOD = jpeg()


def zipped(path: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return path


def read(path: Path, **changes: int) -> list[Entry]:
    return list(read_zip(path, **(LIMITS | changes)))


def test_pictures_come_with_their_folders_as_classes(tmp_path: Path) -> None:
    path = zipped(
        tmp_path / "a.zip",
        {
            "photos/": b"",
            "photos/okapi/1.jpg": GOOD,
            "photos/zebra/1.jpg": GOOD,
            "loose.jpg": GOOD,
            "__MACOSX/photos/okapi/._1.jpg": b"junk",
            "photos/.DS_Store": b"junk",
        },
    )
    assert [(e.file, e.folder, e.data == GOOD) for e in read(path)] == [
        ("photos/okapi/1.jpg", "okapi", True),
        ("photos/zebra/1.jpg", "zebra", True),
        ("loose.jpg", "", True),
    ]
    assert count_files(path, 20) == 3
    assert [e.file for e in read(path, skip=2)] == ["loose.jpg"]


SLIPS = [
    "../a.jpg",
    "a/../../b.jpg",
    "/etc/passwd",
    "C:/a.jpg",
    "..\\a.jpg",
    "a\\b.jpg",
    "./a.jpg",
    "a//b.jpg",
]


@pytest.mark.parametrize("name", SLIPS)
def test_a_path_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    path = zipped(tmp_path / "a.zip", {"okapi/good.jpg": GOOD, name: GOOD})
    good, bad = read(path)
    assert good.data == GOOD and bad.data == b"" and "leads out" in bad.refused
    before = set(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="leads out"):
        unpack(path, tmp_path / "in", files=9, all_bytes=2**20)
    assert set(tmp_path.rglob("*")) == before


def test_a_name_with_a_nul_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"okapi/good.jpgXsvg": GOOD})
    path.write_bytes(path.read_bytes().replace(b"jpgXsvg", b"jpg\0svg"))
    assert "leads out" in read(path)[0].refused or "damaged" in read(path)[0].refused


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for kind in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO):
            info = zipfile.ZipInfo(f"okapi/{kind}.jpg")
            info.create_system, info.external_attr = 3, (kind | 0o777) << 16
            archive.writestr(info, "/etc/passwd")
    assert ["link or a device" in entry.refused for entry in read(path)] == [True] * 3
    with pytest.raises(DataError, match="link or a device"):
        unpack(path, tmp_path / "in", files=9, all_bytes=2**20)


def test_bombs_are_refused_by_what_they_claim_and_by_what_they_are(tmp_path: Path) -> None:
    bomb = zipped(tmp_path / "bomb.zip", {"okapi/a.jpg": bytes(3 * 2**20), "okapi/b.jpg": GOOD})
    large, good = read(bomb)
    assert "at most 1.0 MB" in large.refused and good.data == GOOD
    with pytest.raises(DataError, match="at most"):
        read(bomb, all_bytes=2**20)
    # The list of entries and the local header both claim 9 bytes.
    lie = bytearray(bomb.read_bytes())
    for at in (22, lie.index(b"PK\x01\x02") + 24):
        lie[at : at + 4] = struct.pack("<I", 9)
    bomb.write_bytes(lie)
    large, good = read(bomb)
    assert large.refused and large.data == b"" and good.data == GOOD


def test_too_many_files_are_refused_before_any_is_read(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {f"okapi/{i}.jpg": b"" for i in range(21)})
    with pytest.raises(DataError, match="21 files; at most 20"):
        read(path)


def test_a_list_of_entries_without_end_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    size = 13 * 2**20
    path.write_bytes(bytes(size) + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 9, 9, size, 0, 0))
    with pytest.raises(DataError, match="list of files is too long"):
        read(path)


def test_archives_in_archives_and_odd_packings_are_refused(tmp_path: Path) -> None:
    inner = zipped(tmp_path / "inner.zip", {"a.jpg": GOOD}).read_bytes()
    path = zipped(tmp_path / "a.zip", {"okapi/inner.zip": inner, "okapi/a.jpg": GOOD})
    nested, good = read(path)
    assert "archive inside an archive" in nested.refused and good.data == GOOD
    path = zipped(tmp_path / "b.zip", {"okapi/a.jpg": GOOD}, zipfile.ZIP_LZMA)
    assert "deflate" in read(path)[0].refused


def test_entries_that_overlap_are_not_read_twice(tmp_path: Path) -> None:
    """The bomb of one body that many entries share."""
    path = zipped(tmp_path / "a.zip", {"okapi/a.jpg": bytes(2**19), "okapi/b.jpg": bytes(2**19)})
    data = bytearray(path.read_bytes())
    second = data.rindex(b"PK\x01\x02")
    data[second + 42 : second + 46] = struct.pack("<I", 0)  # b begins where a does
    path.write_bytes(data)
    assert any(entry.refused for entry in read(path))


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x05\x06" + bytes(17), b"PK\x03\x04" + bytes(300)])
def test_what_is_no_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(DataError, match="not a zip"):
        read(tmp_path / "a.zip")


def test_a_damaged_entry_is_refused_by_itself(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"okapi/a.jpg": GOOD, "okapi/b.jpg": GOOD}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[60:70] = b"overwrite!"
    path.write_bytes(data)
    bad, good = read(path)
    assert "damaged" in bad.refused and good.data == GOOD


def test_a_model_is_unpacked_without_the_folder_that_it_was_zipped_in(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"model/model.json": b"{}", "model/sub/a.bin": b"a"})
    unpack(path, tmp_path / "in", files=9, all_bytes=2**20)
    assert (tmp_path / "in/model.json").read_bytes() == b"{}" and (tmp_path / "in/sub/a.bin").is_file()


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a", b"2")
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path / "a.zip", tmp_path / "in", files=9, all_bytes=99)
    assert not (tmp_path / "in").exists()
