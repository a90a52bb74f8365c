import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from wdae.errors import StorageError
from wdae.storage import files as storage
from wdae.storage import records
from wdae.storage.tensors import load_tensors, open_tensors, save_tensors


def test_text_bytes_and_json_come_back_and_leave_nothing_else(tmp_path: Path) -> None:
    storage.write_text(tmp_path / "a.txt", "zwölf\r\n")
    storage.write_bytes(tmp_path / "b.bin", b"\x00\xff")
    records.write_json(tmp_path / "new" / "folder" / "c.json", {"é": [1, 2.5, None]})
    assert (tmp_path / "a.txt").read_bytes() == "zwölf\r\n".encode()
    assert (tmp_path / "b.bin").read_bytes() == b"\x00\xff"
    assert records.read_json(tmp_path / "new" / "folder" / "c.json") == {"é": [1, 2.5, None]}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "b.bin", "new"]


def test_the_old_file_is_there_until_the_body_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    storage.write_text(path, "old")
    with storage.atomic_file(path) as temporary:
        temporary.write_text("new")
        assert temporary.suffix == ".txt"
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_keeps_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "x.txt"
    storage.write_text(path, "old")

    def fail() -> None:
        with storage.atomic_file(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "x.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    for write in (storage.write_text, storage.append_text):
        with pytest.raises(StorageError):
            write(link, "new")
        assert target.read_text() == "old"
    link.unlink()
    link.symlink_to(tmp_path / "nothing")
    with pytest.raises(StorageError, match="is a link"):
        storage.write_text(link, "new")
    assert not (tmp_path / "nothing").exists()


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder"

    def fail() -> None:
        with storage.atomic_folder(path) as temporary:
            (temporary / "a").write_text("a")
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert list(tmp_path.iterdir()) == []
    with storage.atomic_folder(path) as temporary:
        (temporary / "deep").mkdir()
        (temporary / "deep" / "a").write_text("a")
        assert not path.exists()
    assert (path / "deep" / "a").read_text() == "a"


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int64, torch.bool]
)
def test_tensors_come_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.randint(0, 2, (3, 5), generator=torch.Generator().manual_seed(0)).to(dtype)
    tensors = {
        "plain": values,
        "turned": values.T,
        "scalar": values[0, 0],
        "empty": values[:0],
        "view": values,
    }
    save_tensors(tmp_path / "t.safetensors", tensors, {"key": "value"})
    back, metadata = open_tensors(tmp_path / "t.safetensors")
    assert metadata == {"key": "value"}
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == dtype
        assert torch.equal(back[name], tensor)


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    save_tensors(tmp_path / "t.safetensors", {"a": torch.ones(2)})
    storage.write_text(tmp_path / "t.txt", "x")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_the_checksum_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert storage.sha256(tmp_path / "x").startswith("ba7816bf8f01cfea")


def test_what_a_killed_writer_left_is_swept_away_and_a_living_one_is_let_be(tmp_path: Path) -> None:
    script = (
        "import os, sys, wdae.storage.files as s\n"
        "with s.atomic_file(sys.argv[1]) as t:\n"
        "    t.write_text('half'); os.kill(os.getpid(), 9)\n"
    )
    path = tmp_path / "x.txt"
    storage.write_text(path, "old")
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    assert path.read_text() == "old"
    with storage.atomic_file(path) as ours:
        ours.write_text("ours")
        storage.write_text(path, "another's")
        assert ours.read_text() == "ours"
    assert path.read_text() == "ours"
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]


def test_a_file_is_mapped_rather_than_read(tmp_path: Path) -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("resident memory is measured through /proc")
    save_tensors(tmp_path / "t.safetensors", {"a": torch.ones(16_000_000)})

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    tensors = load_tensors(tmp_path / "t.safetensors")
    assert resident() - before < 16_000_000
    assert tensors["a"][-1] == 1


def test_json_is_written_for_other_tools_too(tmp_path: Path) -> None:
    records.write_json(tmp_path / "x.json", {"a": 1})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
    assert (tmp_path / "x.json").read_text().endswith("}\n")


def test_tensors_are_written_as_the_formats_library_writes_them(tmp_path: Path) -> None:
    from safetensors.torch import save

    from wdae.storage.tensors import _TYPES, Blocks, save_tensors

    tensors = {
        f"{letter} {code}": torch.arange(6).reshape(2, 3).to(getattr(torch, name))
        for letter in "ba"
        for code, (name, _) in _TYPES.items()
    }
    tensors |= {"é one": torch.tensor(3.0), "none": torch.zeros(0, 4), "turned": torch.rand(3, 4).T}
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    for metadata in (None, {"format": "é"}):
        save_tensors(tmp_path / "file", tensors, metadata)
        assert (tmp_path / "file").read_bytes() == save(plain, metadata)
    rows = torch.rand(10, 3)
    save_tensors(tmp_path / "file", {"rows": Blocks(rows.dtype, (10, 3), lambda: iter(rows.split(4)))})
    assert (tmp_path / "file").read_bytes() == save({"rows": rows})
    with pytest.raises(ValueError, match="another size"):
        save_tensors(tmp_path / "file", {"rows": Blocks(rows.dtype, (11, 3), lambda: iter(rows.split(4)))})
    assert (tmp_path / "file").read_bytes() == save({"rows": rows})
