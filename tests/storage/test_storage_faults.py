"""Full disks, killed writers, altered and truncated files: nothing is lost and nothing half is read."""

import json
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from wdae.errors import StorageError
from wdae.storage import files as storage
from wdae.storage import records
from wdae.storage.checkpoint import (
    load_checkpoint,
    optimiser_tensors,
    restore_optimiser,
    save_checkpoint,
)
from wdae.storage.tensors import save_tensors


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "run.safetensors"
    generator = torch.Generator().manual_seed(0)
    tensors = {"a": torch.randn(9, 7, generator=generator), "b": torch.arange(5)}
    save_checkpoint(path, tensors, {"step": 12, "recipe": {"rate": 0.1}})
    return path


def same(path: Path, other: Path) -> bool:
    ours, theirs = load_checkpoint(path), load_checkpoint(other)
    return ours.state == theirs.state and all(
        torch.equal(ours.tensors[name], tensor) for name, tensor in theirs.tensors.items()
    )


def test_no_byte_of_a_checkpoint_can_change_unnoticed(checkpoint: Path, tmp_path: Path) -> None:
    data, altered = checkpoint.read_bytes(), tmp_path / "altered"
    chance = random.Random(0)
    refused = 0
    for place in range(len(data)):
        byte = data[place] ^ (1 << chance.randrange(8))
        altered.write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
        try:
            assert same(altered, checkpoint)  # only padding and spelling may differ without harm
        except StorageError:
            refused += 1
    assert refused > 0.95 * len(data)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_truncated_checkpoint_is_refused(checkpoint: Path, share: float) -> None:
    data = checkpoint.read_bytes()
    checkpoint.write_bytes(data[: int(share * len(data))])
    with pytest.raises(StorageError, match="truncated or altered"):
        load_checkpoint(checkpoint)


def test_a_lengthened_checkpoint_is_refused(checkpoint: Path) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes() + b"\0" * 8)
    with pytest.raises(StorageError, match="truncated or altered"):
        load_checkpoint(checkpoint)


def with_metadata(path: Path, **changes: str) -> None:
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] |= changes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_a_newer_checkpoint_is_refused_with_a_way_out(checkpoint: Path) -> None:
    with_metadata(checkpoint, version="2")
    with pytest.raises(StorageError, match=r"format 2, newer than 1.*upgrade"):
        load_checkpoint(checkpoint)


def test_an_altered_state_is_refused(checkpoint: Path) -> None:
    with_metadata(checkpoint, state=json.dumps({"step": 13, "recipe": {"rate": 0.1}}))
    with pytest.raises(StorageError, match="checksum"):
        load_checkpoint(checkpoint)


def test_another_file_is_not_a_checkpoint(tmp_path: Path) -> None:
    save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(1)})
    with pytest.raises(StorageError, match="not a checkpoint"):
        load_checkpoint(tmp_path / "x.safetensors")
    with pytest.raises(StorageError, match="does not exist"):
        load_checkpoint(tmp_path / "none.safetensors")


def test_an_optimiser_of_another_model_is_refused() -> None:
    def make(*sizes: int) -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.ones(size, requires_grad=True) for size in sizes], lr=0.1)

    saved = optimiser_tensors(make(3, 4))
    for other in (make(3), make(3, 5), make(3, 4, 1)):
        with pytest.raises(StorageError, match="optimiser has 2 parameters"):
            restore_optimiser(other, saved)


def test_json_faults(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": ')
    with pytest.raises(StorageError, match="truncated or altered"):
        records.read_json(tmp_path / "x.json")
    with pytest.raises(StorageError, match="does not exist"):
        records.read_json(tmp_path / "y.json")


def test_what_is_not_a_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(StorageError, match="not a file"):
        storage.write_text(tmp_path / "x", "text")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        storage.write_text(tmp_path / "file" / "y", "text")
    with pytest.raises(StorageError, match="exists already"), storage.atomic_folder(tmp_path / "x"):
        pass


# Writes a small checkpoint and bank, then ones that do not fit, and says what became of it.
FULL_DISK = """
import resource, sys
from pathlib import Path
import torch
from wdae.storage import files as storage, records
from wdae.errors import StorageError
from wdae.synthetic import synthetic_bank
from wdae.storage.checkpoint import load_checkpoint, save_checkpoint

folder = Path(sys.argv[1])
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
save_checkpoint(folder / "c", {"a": torch.ones(1000)}, {"step": 1})
storage.write_text(folder / "t", "old")
attempts = {
    "checkpoint": lambda: save_checkpoint(folder / "c", {"a": torch.zeros(1_000_000)}, {"step": 2}),
    "text": lambda: storage.write_text(folder / "t", "x" * 4_000_000),
    "bank": lambda: synthetic_bank(20, 4, 4, 100).save(folder / "bank"),
}
for name, attempt in attempts.items():
    try:
        attempt()
        print(name, "was written")
    except StorageError as error:
        print(name, error)
assert load_checkpoint(folder / "c").state == {"step": 1}
assert load_checkpoint(folder / "c").tensors["a"].sum() == 1000
assert (folder / "t").read_text() == "old"
print("left:", sorted(path.name for path in folder.iterdir()))
"""


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=600k tmpfs "$1"'  # in a mount namespace of its own, gone with it
    sandbox = ["unshare", "-rm", "sh", "-c"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*sandbox, mount, "sh", tmp_path], check=False).returncode
    ):
        pytest.skip("this machine does not let us mount a small disk")
    command = f'{mount} && "$2" -c "$3" "$1" full'
    out = subprocess.run(
        [*sandbox, command, "sh", tmp_path, sys.executable, FULL_DISK],
        check=False,
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    for line, name in zip(out.stdout.splitlines(), ("checkpoint", "text", "bank"), strict=False):
        assert line.startswith(f"{name} the disk is full: cannot write ")
    assert "left: ['c', 't']" in out.stdout


def test_a_limit_on_file_size_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", FULL_DISK, tmp_path, "limit"], check=False, capture_output=True, text=True
    )
    assert out.returncode == 0, out.stderr
    for line, name in zip(out.stdout.splitlines(), ("checkpoint", "text", "bank"), strict=False):
        assert line.startswith(f"{name} cannot write ")
    assert "left: ['c', 't']" in out.stdout


# Forks writers and kills each at a random moment; after each kill all there is must be whole.
KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from wdae.bank import FeatureBank
from wdae.synthetic import synthetic_bank
from wdae.storage.checkpoint import load_checkpoint, save_checkpoint

torch.set_num_threads(1)
folder, chance = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
bank = synthetic_bank(8, 2, 2, 40)
step = 0

def write(kill, step):
    save_checkpoint(folder / "c", {"a": torch.full((100_000,), step)}, {"step": step})
    bank.save(folder / f"bank-{kill}-{step}")

write("first", 0)
begun = time.monotonic()
write("second", 0)
once = time.monotonic() - begun
steps = []
for kill in range(20):
    started, ready = os.pipe()
    child = os.fork()
    if not child:
        while True:
            os.write(ready, b"x")
            step += 1
            write(kill, step)
    for _ in range(chance.choice([1, 2])):  # until it has begun, or has written once: slow machines too
        os.read(started, 1)
    time.sleep(chance.uniform(0, 1.5 * once))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = load_checkpoint(folder / "c")
    assert (found.tensors["a"] == found.state["step"]).all()
    assert found.state["step"] >= step
    step = found.state["step"]
    steps.append(step)
banks = list(folder.glob("bank-*"))
for path in banks:
    assert torch.equal(FeatureBank.open(path).features, bank.features)
save_checkpoint(folder / "c", {}, {})
print(len(set(steps)), len(banks), len(list(folder.glob(".c.*"))))
"""


def test_a_killed_writer_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, "0"], check=False, capture_output=True, text=True
    )
    assert out.returncode == 0, out.stderr
    n_steps, n_banks, n_left = map(int, out.stdout.split())
    assert n_steps > 3  # the writers did get somewhere
    assert n_banks > 3
    assert n_left == 0  # what the killed left was swept away by the next
