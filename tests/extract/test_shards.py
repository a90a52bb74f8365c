"""Extraction in shards: merged, the bank of a single process; shards that do not fit are named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from stage1_samples import extraction

from wdae.bank import FeatureBank
from wdae.cli.main import main
from wdae.errors import BankError, DataError, RecipeError, StorageError
from wdae.extract.run import extract
from wdae.extract.shards import merge_shards
from wdae.runtime.distributed import Team
from wdae.stage1.model_file import load_model, save_model
from wdae.stage1.recognition_model import build_recognition_model
from wdae.storage.shard import Shard

ALONE = Team(0, 1, torch.device("cpu"))


def shards(tmp_path: Path, n: int, name: str = "part", **changes: Any) -> list[Path]:
    config = extraction(tmp_path, **changes)
    paths = [tmp_path / f"{name}-{i}" for i in range(1, n + 1)]
    for number, path in enumerate(paths, start=1):
        extract(config, path, ALONE, shard=Shard(number, n))
    return paths


@pytest.mark.parametrize("options", [{}, {"crops": 2, "flip_average": True}, {"dtype": "int8"}])
def test_merged_shards_are_the_bank_of_one_process(tmp_path: Path, options: dict[str, Any]) -> None:
    paths = shards(tmp_path, 3, chunk=16, **options)
    config = extraction(tmp_path, chunk=16, **options)
    extract(config, tmp_path / "whole", ALONE)
    with pytest.raises(SystemExit, match="0"):
        main(["bank", "merge", *map(str, reversed(paths)), "-o", str(tmp_path / "merged")])
    whole, merged = FeatureBank.open(tmp_path / "whole"), FeatureBank.open(tmp_path / "merged")
    assert merged.digest == whole.digest
    assert merged.info == whole.info and merged.cosine_scale == whole.cosine_scale
    files = [(tmp_path / name / "bank.safetensors").read_bytes() for name in ("whole", "merged")]
    assert files[0] == files[1]


def test_a_picture_that_is_left_out_is_left_out_of_the_merged_bank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extraction(tmp_path)
    (tmp_path / "pictures" / "novel" / "novel-0" / "3.png").write_bytes(b"no picture")
    paths = shards(tmp_path, 4, chunk=16, skip_broken=True)
    extract(extraction(tmp_path, chunk=16, skip_broken=True, stream=True), tmp_path / "whole", ALONE)
    assert "with --skip-broken false that is an error" in capsys.readouterr().err
    merge_shards(paths, tmp_path / "merged")
    assert FeatureBank.open(tmp_path / "merged").digest == FeatureBank.open(tmp_path / "whole").digest


def test_shards_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    first, second, third = shards(tmp_path, 3, chunk=16)
    out = tmp_path / "merged"
    with pytest.raises(BankError, match=r"of 3 shards 1 are missing: 2; make them with --shard 2/3"):
        merge_shards([first, third], out)
    with pytest.raises(BankError, match=r"shard 2/3 is given twice: .*part-2 and .*part-2"):
        merge_shards([first, second, second, third], out)
    mirrored = shards(tmp_path, 3, "mirrored", chunk=16, flip_average=True)
    with pytest.raises(BankError, match=r"mirrored-2 does not belong to .*part-1: they differ in flip"):
        merge_shards([first, mirrored[1], third], out)
    two = shards(tmp_path, 2, "two", chunk=16)
    with pytest.raises(BankError, match=r"differ in number of shards"):
        merge_shards([first, two[1]], out)
    with pytest.raises(StorageError, match="is not a shard"):
        merge_shards([first, tmp_path / "pictures"], out)
    with pytest.raises(BankError, match="no shards to merge"):
        merge_shards([], out)
    data = bytearray((second / "shard.safetensors").read_bytes())
    data[-3] ^= 1
    (second / "shard.safetensors").write_bytes(data)
    with pytest.raises(StorageError, match="altered"):
        merge_shards([first, second, third], out)


def test_a_shard_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stage1_samples import Interrupted

    config = extraction(tmp_path, chunk=8)
    calls = Interrupted(monkeypatch, "embed", stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        extract(config, tmp_path / "part", ALONE, shard=Shard(1, 2))
    done = len(calls.made)
    extract(config, tmp_path / "part", ALONE, shard=Shard(1, 2))
    assert len(calls.made) - done == 5 - 2  # 80 pictures are ten chunks, five of them the first half


@pytest.mark.parametrize("word", ["0/3", "4/3", "1", "1/0", "-1/3", "a/b", "1/2/3", "1/99999999"])
def test_words_that_are_no_shard(word: str) -> None:
    with pytest.raises(RecipeError, match="shard"):
        Shard.parse(word)


def test_parts_are_the_whole_in_order() -> None:
    for n in (1, 2, 3, 7, 50):
        found = [start for number in range(1, n + 1) for start in Shard(number, n).of(range(0, 200, 10))]
        assert found == list(range(0, 200, 10))


def test_more_shards_than_chunks(tmp_path: Path) -> None:
    merge_shards(shards(tmp_path, 4, chunk=40), tmp_path / "merged")
    extract(extraction(tmp_path, chunk=40), tmp_path / "whole", ALONE)
    assert FeatureBank.open(tmp_path / "merged").digest == FeatureBank.open(tmp_path / "whole").digest


def test_a_shard_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    first, _ = shards(tmp_path, 2, chunk=40)
    model = tmp_path / "model"
    card = load_model(model).card
    shutil.rmtree(model)
    save_model(model, build_recognition_model("conv4-64", {"image_size": 16}, 3, seed=4), card)
    _, other = shards(tmp_path, 2, "other", chunk=40)
    with pytest.raises(BankError, match=r"other-2 does not belong to .*part-1: they differ in weights"):
        merge_shards([first, other], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux")
def test_features_are_never_in_memory_together(tmp_path: Path) -> None:
    """A bank of 64 MB from parts of 2 MB, in a process that takes no more than 24 MB meanwhile."""
    program = f"""
import torch
from wdae.bank import FeatureBank, Part
from wdae.bank.format import stream_bank
n, peak = 32 * 1024, 0
def own():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) / 1024
def parts():
    global peak
    for i in range(32):
        peak = max(peak, own())
        yield torch.full((1024, 512), 1.0 + i)
columns = dict(labels=torch.arange(n) % 7, parts=torch.full((n,), Part.NOVEL.code, dtype=torch.uint8))
before = own()
stream_bank(FeatureBank, "{tmp_path}/bank", "float32", parts, 512, columns, class_names=list("abcdefg"))
print(max(peak, own()) - before)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < 24
    assert FeatureBank.open(tmp_path / "bank").features.shape == (32 * 1024, 512)


def test_more_classes_than_a_bank_holds_are_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wdae.extract.job.MAX_CLASSES", 4)
    with pytest.raises(DataError, match=r"pictures has 10 classes; a bank holds 4 at most"):
        extract(extraction(tmp_path), tmp_path / "bank", ALONE)
