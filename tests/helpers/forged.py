"""Forged artefacts: one for each hole that was found, and for each rule that closes it."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from fuzz_artefacts import FIXTURES
from fuzz_guard import CANARY
from fuzz_mutations import seal
from PIL import Image

EVIL = {"backbone": "os:system", "backbone_options": {"command": f"touch {CANARY}"}}


class Runs:
    """Unpickled, it would run a program."""

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (f"touch {CANARY}",)


def model(place: Path, change: Callable[[dict[str, Any], Path], None], name: str = "pictures") -> Path:
    """A model whose manifest was changed and sealed again."""
    return _changed(FIXTURES / "models" / name, place / "model", "model.json", change)


def bank(place: Path, change: Callable[[dict[str, Any], Path], None]) -> Path:
    """A bank whose manifest was changed and sealed again."""
    return _changed(FIXTURES / "banks" / "float32", place / "bank", "manifest.json", change)


def stage1_model(place: Path, change: Callable[[dict[str, Any], Path], None]) -> Path:
    """A stage-1 model whose manifest was changed and sealed again."""
    return _changed(FIXTURES / "stage1" / "eye" / "model", place / "stage1", "model.json", change)


def _changed(origin: Path, folder: Path, file: str, change: Callable[[dict[str, Any], Path], None]) -> Path:
    shutil.copytree(origin, folder)
    value = json.loads((folder / file).read_text())
    change(value, folder)
    (folder / file).write_text(json.dumps(seal(value)))
    return folder


def names_code(factory: str) -> Callable[[dict[str, Any], Path], None]:
    """The backbone is made by a function of the forger's choice."""

    def change(value: dict[str, Any], folder: Path) -> None:
        card = value.get("backbone")
        target = card if isinstance(card, dict) else value
        target |= {"backbone": factory, "backbone_options": {"command": f"touch {CANARY}"}}
        if factory != "os:system":
            target["backbone_options"] = {}

    return change


def feature_files(place: Path) -> list[Path]:
    """Files of features that ask for too much, or for what is not theirs."""
    place.mkdir()
    secret = place / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["features"] = np.ones((4, 16), np.float32)
    made = [
        place / f"{name}.h5" for name in ("external-link", "soft-link", "virtual", "external-storage", "huge")
    ]
    with h5py.File(made[0], "w") as file:
        file["features"] = h5py.ExternalLink(str(secret), "/features")
    with h5py.File(made[1], "w") as file:
        file["features"] = h5py.SoftLink("/elsewhere")
    with h5py.File(made[2], "w") as file:
        layout = h5py.VirtualLayout((4, 16), np.float32)
        layout[:] = h5py.VirtualSource(str(secret), "features", (4, 16))
        file.create_virtual_dataset("features", layout)
    with h5py.File(made[3], "w") as file:
        file.create_dataset("features", (4, 16), np.float32, external=[(str(secret), 0, 256)])
    with h5py.File(made[4], "w") as file:
        file.create_dataset("features", (2**30, 16), np.float32, chunks=(1024, 16))
    np.save(place / "object.npy", np.array([Runs()], dtype=object), allow_pickle=True)
    whole = io.BytesIO()
    np.save(whole, np.ones((4, 16), np.float32))
    (place / "claims.npy").write_bytes(
        whole.getvalue().replace(b"(4, 16), }" + b" " * 7, b"(4000000000, 16),}"[:17])
    )
    with zipfile.ZipFile(place / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = whole.getvalue()[:128]
        archive.writestr("features.npy", header + bytes(2**29))
    with zipfile.ZipFile(place / "nested.npz", "w") as archive:
        archive.writestr("../features.npy", whole.getvalue())
    header = json.dumps(
        {"features": {"dtype": "F32", "shape": [2**40, 16], "data_offsets": [0, 64]}}
    ).encode()
    (place / "claims.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    (place / "deep.json").write_text("[" * 100_000)
    (place / "nul.csv").write_bytes(b"label,f0\na,\0\n")
    (place / "long.csv").write_text("label,f0\n" + "x" * 200_000 + ",1\n")
    return sorted(path for path in place.iterdir() if path != secret)


def pictures(place: Path) -> list[Path]:
    """Pictures that are none, or too much of one."""
    place.mkdir()
    (place / "ghost.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(" + CANARY.encode() + b") (w) file\n"
    )
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    data = image.getvalue()
    text = b"zTXt" + b"k\0\0" + zlib.compress(bytes(2**26))
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    (place / "text.png").write_bytes(data[:33] + chunk + data[33:])
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    size = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    (place / "bomb.png").write_bytes(data[:8] + size + data[33:])
    jpeg = io.BytesIO()
    Image.new("RGB", (64, 64)).save(jpeg, "JPEG", progressive=True)
    whole = jpeg.getvalue()
    at = whole.rindex(b"\xff\xda")
    (place / "scans.jpg").write_bytes(whole[:at] + whole[at:-2] * 500 + whole[-2:])
    return sorted(place.iterdir())


def pickled(place: Path, data: bytes | None = None) -> Path:
    """A folder that looks like MiniImageNet's cached pickles."""
    place.mkdir()
    (place / "mini-imagenet-cache-train.pkl").write_bytes(data or pickle.dumps({"image_data": Runs()}))
    return place


RECIPES = {
    "aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)),
    "tag": f"name: !!python/object/apply:os.system ['touch {CANARY}']\n",
    "deep": "name: " + "[" * 20_000 + "\n",
    "outside": "extends: ../../outside.yaml\n",
}
