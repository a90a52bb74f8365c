"""What users can get wrong with pictures: each is refused by name, and nothing of it is run or half-done."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import resource
import struct
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wdae.data import FileSource, load_split, open_dataset, pixels
from wdae.data.decode import MAX_PIXELS, decode
from wdae.data.restricted_unpickler import load_pickle
from wdae.errors import DataError


def paint(path: Path, colour: int = 0, size: tuple[int, int] = (24, 24)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(colour).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


@pytest.fixture
def pets(tmp_path) -> Path:
    for number, name in enumerate(("cat", "dog")):
        for picture in range(3):
            paint(tmp_path / "pets" / name / f"{picture}.jpg", 10 * number + picture)
    return tmp_path / "pets"


# Readers


def test_missing_class_folders_are_named(tmp_path):
    classes = load_split("mini-imagenet").classes
    for wnid in classes[2:]:
        paint(tmp_path / wnid / "1.png", size=(4, 4))
    with pytest.raises(DataError, match="2 of 100 classes") as caught:
        open_dataset(tmp_path)
    assert classes[0] in str(caught.value)
    assert classes[1] in str(caught.value)


def test_missing_folders_of_ilsvrc(tmp_path):
    paint(tmp_path / "train" / "n01440764" / "1.png", size=(4, 4))
    with pytest.raises(DataError, match=r"train/: 999 of 1000 classes: .* and 994 more; the folder val/"):
        open_dataset(tmp_path, "imagenet-fs")
    paint(tmp_path / "val" / "ILSVRC2012_val_00000001.png", size=(4, 4))
    with pytest.raises(DataError, match="1 pictures and no class folders; sort them"):
        open_dataset(tmp_path, "imagenet-fs")


def test_an_empty_class_folder_is_named(pets):
    (pets / "okapi").mkdir()
    (pets / "okapi" / "notes.txt").write_text("none yet")
    with pytest.raises(DataError, match=r"class 'okapi' has 0 pictures in .*okapi; give at least 1"):
        open_dataset(pets)


def test_a_list_naming_absent_files(pets):
    file = pets / "all.csv"
    file.write_text("path,label\ncat/0.jpg,cat\ncat/77.jpg,cat\n../../etc/nothing.jpg,dog\n")
    with pytest.raises(DataError, match=r"2 pictures of all.csv do not exist: cat/77.jpg \(line 3\)"):
        open_dataset(file)


def test_a_mini_imagenet_list_naming_absent_files(tmp_path):
    wnid = load_split("mini-imagenet").base[0]
    paint(tmp_path / "images" / f"{wnid}1.jpg")
    (tmp_path / "train.csv").write_text(f"filename,label\n{wnid}1.jpg,{wnid}\n{wnid}2.jpg,{wnid}\n")
    with pytest.raises(DataError, match=f"1 pictures of train.csv: {wnid}2.jpg; the list val.csv"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("cat/0.jpg,cat\n", "must name the columns path,label"),
        ("path,label\ncat/0.jpg\n", "line 2: 'cat/0.jpg' lacks a path or a label"),
        ("path,label,part\ncat/0.jpg,cat,novell\n", "line 2: unknown part 'novell'; did you mean 'novel'"),
    ],
)
def test_lists_that_are_none(pets, text, message):
    file = pets / "all.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        open_dataset(file)


def test_a_list_that_is_no_text(pets):
    file = pets / "all.csv"
    file.write_bytes(b"path,label\n\xff\xfe\x00,x\n")
    with pytest.raises(DataError, match="cannot be read as a CSV file"):
        open_dataset(file)


def test_a_class_in_two_parts_in_folders(tmp_path):
    for place in ("train", "test"):
        paint(tmp_path / place / "cat" / "1.png")
    with pytest.raises(DataError, match=r"'cat' \(novel: .*test.cat.*; base: .*train.cat.*base-held-out"):
        open_dataset(tmp_path)


def test_a_class_in_two_parts_in_a_list(pets):
    file = pets / "all.csv"
    file.write_text("path,label,part\ncat/0.jpg,cat,base\ncat/1.jpg,cat,novel\n")
    with pytest.raises(DataError, match=r"'cat' \(base: .*0.jpg; novel: .*1.jpg\)"):
        open_dataset(file)


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        open_dataset(tmp_path / "gone")
    with pytest.raises(DataError, match="nothing recognised"):
        open_dataset(tmp_path)
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="its pictures have no class; put those of each class into a folder"):
        open_dataset(tmp_path)
    (tmp_path / "readme.txt").write_text("hello")
    with pytest.raises(DataError, match="neither a folder nor a CSV"):
        open_dataset(tmp_path / "readme.txt")


# Pictures


def refused(pets: Path, name: str, reason: str, cache: Path) -> None:
    """The set is refused with the picture's name; without it, the rest is whole."""
    image_set = open_dataset(pets)
    with pytest.raises(DataError, match=reason) as caught:
        pixels(image_set, 16, cache_dir=cache)
    assert name in str(caught.value)
    assert "--skip-broken" in str(caught.value)
    array = pixels(image_set, 16, cache_dir=cache, skip_broken=True)
    assert len(array.dropped) == 1
    assert name in array.dropped[0]
    good = [row for row in range(len(image_set)) if name not in image_set.describe(row)]
    assert array.kept.tolist() == good
    assert np.array_equal(array.labels, image_set.labels[good])
    whole = pixels(image_set.select(good), 16, cache_dir=cache)
    assert np.array_equal(array.data, whole.data)


def test_truncated_jpeg(pets, tmp_path):
    broken = pets / "cat" / "1.jpg"
    broken.write_bytes(broken.read_bytes()[:-200])
    refused(pets, str(broken), "truncated", tmp_path / "cache")


def test_truncated_png(pets, tmp_path):
    broken = paint(pets / "cat" / "9.png")
    broken.write_bytes(broken.read_bytes()[:300])
    refused(pets, str(broken), "cannot be decoded", tmp_path / "cache")


def test_text_named_jpg(pets, tmp_path):
    (pets / "dog" / "0.jpg").write_text("<html>404</html>")
    refused(pets, str(pets / "dog" / "0.jpg"), "not a picture that is read", tmp_path / "cache")


def test_empty_file(pets, tmp_path):
    (pets / "dog" / "2.jpg").write_bytes(b"")
    refused(pets, str(pets / "dog" / "2.jpg"), "the file is empty", tmp_path / "cache")


def test_a_picture_nobody_may_read(pets, tmp_path):
    hidden = pets / "dog" / "1.jpg"
    hidden.unlink()
    hidden.symlink_to(tmp_path / "nowhere.jpg")
    image_set = open_dataset(pets)
    assert len(image_set) == 5, "a link to nothing is no picture"
    hidden.unlink()
    paint(hidden)
    image_set = open_dataset(pets)
    hidden.unlink()
    with pytest.raises(DataError, match=r"dog.1\.jpg does not exist"):
        pixels(image_set, 16, cache_dir=tmp_path / "cache")


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def jpeg_header(width: int, height: int) -> bytes:
    import simplejpeg

    small = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8))
    at = small.index(b"\xff\xc0") + 5
    return small[:at] + struct.pack(">HH", height, width) + small[at + 4 :]


def test_bombs_are_refused_from_their_header():
    """In a process of its own, whose memory is watched."""
    bombs = [png_header(60_000, 60_000), png_header(12_000, 12_000), jpeg_header(60_000, 60_000)]
    code = textwrap.dedent(f"""
        import resource
        from wdae.data.decode import decode
        from wdae.errors import DataError
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for bomb in {bombs!r}:
            try:
                decode(bomb)
            except DataError as error:
                grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
                print(grown, error)
    """)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        grown, message = line.split(maxsplit=1)
        assert re.search(f"at most ({MAX_PIXELS:,}|{2 * MAX_PIXELS:,}) pixels are accepted", message)
        assert "bomb" not in message and message.count("pixels") == 2, "one limit, in our words"
        assert int(grown) < 50_000, "kilobytes: nothing was allocated for the pixels"
    assert "Warning" not in done.stderr


def test_a_bomb_in_a_set(pets, tmp_path):
    (pets / "cat" / "9.png").write_bytes(png_header(60_000, 60_000))
    refused(pets, str(pets / "cat" / "9.png"), "has 3,600,000,000 pixels; at most", tmp_path / "cache")


def test_no_picture_at_all(pets, tmp_path):
    for file in pets.glob("*/*.jpg"):
        file.write_text("no")
    with pytest.raises(DataError, match="not one picture can be read"):
        pixels(open_dataset(pets), 16, cache_dir=tmp_path, skip_broken=True)


def test_formats_that_run_programs_are_not_tried():
    """Pillow would hand PostScript to an interpreter."""
    with pytest.raises(DataError, match="not a picture"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n")


@pytest.mark.parametrize("seed", range(8))
def test_damaged_bytes_never_escape_as_another_error(seed):
    generator = np.random.default_rng(seed)
    import io

    for form in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM"):
        buffer = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(buffer, form)
        data = bytearray(buffer.getvalue())
        for at in generator.integers(0, len(data), 6):
            data[at] = generator.integers(0, 256)
        try:
            out = decode(bytes(data))
        except DataError:
            continue
        assert out.dtype == np.uint8
        assert out.shape[2] == 3


# Pickles


class Runs:
    """A pickle of this runs a command when it is loaded by the usual unpickler."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize(
    ("function", "name"),
    [(os.system, "posix.system"), (exec, "builtins.exec"), (subprocess.Popen, "(subprocess|commands).Popen")],
)
def test_a_pickle_that_runs_code_is_refused_by_name_and_not_run(tmp_path, protocol, function, name):
    trace = tmp_path / "it-ran"
    command = f"open({str(trace)!r}, 'w')" if function is exec else f"touch {trace}"
    arguments = (["touch", str(trace)],) if function is subprocess.Popen else (command,)
    file = tmp_path / "mini-imagenet-cache-train.pkl"
    content = {"image_data": Runs(function, *arguments), "class_dict": {}}
    file.write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(DataError, match=rf"cache-train.pkl: the pickle asks for {name}, which was not run"):
        open_dataset(tmp_path)
    time.sleep(0.05)
    assert not trace.exists()
    pickle.loads(file.read_bytes())  # the attack is real: the usual unpickler falls for it
    for _ in range(200):
        if trace.exists():
            break
        time.sleep(0.01)
    assert trace.exists()


@pytest.mark.parametrize(
    "name",
    [
        "numpy.load",
        "numpy.f2py.compile",
        "numpy.core.multiarray.fromfile",
        "builtins.getattr",
        "builtins.eval",
        "numpy.ndarray.tofile",
        "wdae.data.restricted_unpickler._ALLOWED",
    ],
)
def test_other_names_are_refused(tmp_path, name):
    module, _, attribute = name.rpartition(".")
    file = tmp_path / "x.pkl"
    file.write_bytes(f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(DataError, match="was not run"):
        load_pickle(file)


def test_dotted_names_do_not_reach_through_allowed_ones(tmp_path):
    file = tmp_path / "x.pkl"
    name = b"ndarray.tofile"
    file.write_bytes(b"\x80\x04\x8c\x05numpy\x8c" + bytes([len(name)]) + name + b"\x93.")
    with pytest.raises(DataError, match=r"numpy.ndarray.tofile, which was not run"):
        load_pickle(file)


def test_forged_array_types_are_refused(tmp_path):
    """A type that claims to hold objects in raw bytes would have numpy follow the bytes as addresses."""
    forged = (
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntb"
        b"S'AAAAAAAA'\ntR."
    )
    fields = (
        b"cnumpy\ndtype\n(S'V8'\nI0\nI1\ntR(I3\nS'|'\nN(S'a'\nt(dS'a'\n(cnumpy\ndtype\n(S'O8'\nI0\nI1\ntRI0\nts"
        b"I8\nI1\nI0\ntb."
    )
    raw = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I1\ntcnumpy\ndtype\n"
        b"(S'O8'\nI0\nI1\ntRI0\nS'AAAAAAAA'\ntb."
    )
    for data in (forged, fields, raw):
        file = tmp_path / "x.pkl"
        file.write_bytes(data)
        with pytest.raises(DataError):
            load_pickle(file)


@pytest.mark.parametrize("data", [b"", b"\x80", b"hello", b"\x80\x04]", b"I1\n"])
def test_damaged_pickles(tmp_path, data):
    file = tmp_path / "x.pkl"
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"x\.pkl: is not a whole pickle"):
        load_pickle(file)


# The cache


FORK = multiprocessing.get_context("fork") if sys.platform == "linux" else multiprocessing.get_context()


def _build(pets: Path, cache: Path, limit: int | None, barrier, answers) -> None:
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    image_set = open_dataset(pets)
    if barrier is not None:
        barrier.wait(timeout=60)
    try:
        array = pixels(image_set, 64, cache_dir=cache, workers=2)
        answers.put(("built", len(array), int(array.data.sum())))
    except DataError as error:
        answers.put(("refused", str(error)))


def builder(pets: Path, cache: Path, answers, *, limit: int | None = None, barrier=None):
    """Another process that builds the cache of a set and puts what came of it into a queue."""
    process = FORK.Process(target=_build, args=(pets, cache, limit, barrier, answers))
    process.start()
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits on files")
def test_no_space_for_the_cache(pets, tmp_path):
    """A limit on the size of files fails the same calls as a full disk, with another number."""
    cache, answers = tmp_path / "cache", FORK.SimpleQueue()
    builder(pets, cache, answers, limit=20_000).join(60)
    verdict, message = answers.get()
    assert verdict == "refused"
    assert message.startswith(f"cannot keep 6 pictures of 64 × 64 pixels (0.1 MB) in {cache}: ")
    assert "File too large" in message
    assert "--cache-dir" in message
    assert not [path for path in cache.rglob("*") if path.is_dir()], "nothing half-made is left"
    assert len(pixels(open_dataset(pets), 64, cache_dir=cache)) == 6


def test_more_than_the_disk_has_is_refused_at_once(pets, tmp_path, monkeypatch):
    import shutil

    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=1000))
    with pytest.raises(DataError, match=r"0 MB free; free some space there, or choose another folder"):
        pixels(open_dataset(pets), 64, cache_dir=tmp_path / "cache")


def test_a_cache_folder_that_cannot_be(pets, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot keep 6 pictures .*choose another folder"):
        pixels(open_dataset(pets), 16, cache_dir=tmp_path / "file")


@pytest.mark.skipif(sys.platform != "linux", reason="locks as on Linux")
def test_two_processes_build_the_same_cache_at_once(tmp_path):
    for number in range(150):
        paint(tmp_path / "pets" / f"class {number % 3}" / f"{number}.jpg", number)
    cache, answers, barrier = tmp_path / "cache", FORK.SimpleQueue(), FORK.Barrier(2)
    both = [builder(tmp_path / "pets", cache, answers, barrier=barrier) for _ in "ab"]
    first, second = answers.get(), answers.get()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    assert first == second
    assert first[:2] == ("built", 150)
    assert len(list(cache.glob("pixels-*"))) == 1
    assert not list(cache.glob(".*.tmp"))


def test_two_builders_without_a_lock_one_wins_both_go_on(pets, tmp_path, monkeypatch):
    """As on file systems without locks: both build, the second to finish takes the first one's work."""
    from wdae.data import cache as module

    monkeypatch.setattr(module, "alone", lambda *_, **__: contextlib.nullcontext())
    image_set, cache = open_dataset(pets), tmp_path / "cache"
    barrier = threading.Barrier(2)
    decode_into = module._decode_into

    def together(*arguments):
        barrier.wait(timeout=20)
        return decode_into(*arguments)

    monkeypatch.setattr(module, "_decode_into", together)
    results: list[object] = []

    def one() -> None:
        try:
            results.append(pixels(image_set, 16, cache_dir=cache, workers=1).data.sum())
        except BaseException as error:  # the test reports it
            results.append(error)

    threads = [threading.Thread(target=one) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(results) == 2
    assert results[0] == results[1]
    assert len(list(cache.glob("pixels-*"))) == 1


def running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="kills as on Linux")
def test_a_killed_builder_leaves_nothing_in_the_way(tmp_path):
    for number in range(200):
        paint(tmp_path / "pets" / f"class {number % 3}" / f"{number}.jpg", number, (300, 300))
    cache = tmp_path / "cache"
    first = builder(tmp_path / "pets", cache, FORK.SimpleQueue())
    helpers: list[str] = []
    for _ in range(5000):
        helpers = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        if len(helpers) == 2 and list(cache.glob(".pixels-*.tmp")):
            break
        time.sleep(0.002)
    first.kill()
    first.join(60)
    assert list(cache.glob(".pixels-*.tmp")), "it was killed in the middle of its work"
    for _ in range(1000):
        if not any(running(helper) for helper in helpers):
            break
        time.sleep(0.01)
    assert not any(running(helper) for helper in helpers), "its decoding processes end with it"
    assert len(pixels(open_dataset(tmp_path / "pets"), 64, cache_dir=cache)) == 200
    assert not list(cache.glob(".pixels-*.tmp"))


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
def test_a_worker_that_dies_is_reported(tmp_path, monkeypatch):
    for number in range(100):
        paint(tmp_path / "pets" / "cat" / f"{number}.png", number, (8, 8))
    here = os.getpid()

    def die(_source: FileSource, _index: int) -> bytes:
        assert os.getpid() != here, "not in this process"
        os._exit(9)

    monkeypatch.setattr(FileSource, "digest", die)
    with pytest.raises(DataError, match="a process that decoded pictures was killed"):
        pixels(open_dataset(tmp_path / "pets"), 8, cache_dir=tmp_path / "cache", workers=2)
