"""Mutations of files as a forger would make them: plain data, bytes, checkpoints; checksums recomputed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

HOSTILE: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, 2**31, 2**63, 10**30, "", " ", "0", "a", "nan"),
    *("../outside/secret.safetensors", "/etc/passwd", "os:system", "evil_mod:make", "x" * 5000, "C:\\x"),
    *("\x1b[31mred\x1b[0m", "a\nb", "\u202eevil", "=1+1", "\ud800", "\0", "é", "[bold]", "$x$", "<b>"),
    *([], {}, [[]], [None], [1, 2], ["a", "b"], {"a": 1}, {"": {}}, [0] * 300, [[[[[[1]]]]]]),
]
INTERESTING = [0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**40, 2**63 - 1, 2**64 - 1]


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Flip, cut, insert, repeat, or put a telling number somewhere."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        at = draw.randrange(len(out) + 1)
        match draw.randrange(7):
            case 0 if out:
                out[at % len(out)] ^= 1 << draw.randrange(8)
            case 1 if out:
                out[at % len(out)] = draw.randrange(256)
            case 2:
                del out[at:]
            case 3:
                out[at:at] = draw.randbytes(draw.choice((1, 4, 100)))
            case 4:
                size = draw.choice((1, 2, 4, 8))
                number = draw.choice(INTERESTING) & (2 ** (8 * size) - 1)
                out[at : at + size] = number.to_bytes(size, draw.choice(("little", "big")))
            case 5:
                out[at:at] = out[at : at + draw.choice((1, 10, 1000))]
            case 6:
                del out[at : at + draw.choice((1, 4, 50))]
    return bytes(out)


def mutate_tree(value: Any, draw: random.Random) -> Any:
    """Change one thing somewhere in plain data."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.8:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = draw.choice(list(keys))
        copy = value.copy()
        copy[key] = mutate_tree(copy[key], draw)
        return copy
    match draw.randrange(6):
        case 0 if isinstance(value, dict) and value:
            gone = draw.choice(list(value))
            return {k: v for k, v in value.items() if k != gone}
        case 1 if isinstance(value, dict):
            return {
                **value,
                draw.choice(["unknown", "", "../x", "x" * 300, "\x1b", *value]): draw.choice(HOSTILE),
            }
        case 2 if isinstance(value, list):
            return value + draw.choice((value, value * 20, [draw.choice(HOSTILE)]))
        case 3 if isinstance(value, (int, float)) and not isinstance(value, bool):
            return draw.choice((value + 1, -value, value * 10, value * 1000, float(value), str(value)))
        case 4:
            deep: Any = value
            for _ in range(draw.choice((1, 40, 3000))):
                deep = [deep]
            return deep
    return draw.choice(HOSTILE)


def mutate_file(path: Path, draw: random.Random) -> None:
    """Mutate a file by its kind."""
    data = path.read_bytes()
    if path.suffix == ".safetensors" and b'"state"' in data[:100_000] and draw.random() < 0.7:
        with contextlib.suppress(Exception):  # mutated before, and no checkpoint any more
            mutate_checkpoint(path, draw)
            return
    if path.suffix in (".json", ".jsonl", ".safetensors") and draw.random() < 0.8:
        with contextlib.suppress(ValueError, RecursionError):
            if path.suffix == ".safetensors":
                size = int.from_bytes(data[:8], "little")
                header = dumps(mutate_tree(json.loads(data[8 : 8 + size]), draw))
                path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
                return
            if path.suffix == ".json":
                path.write_bytes(dumps(mutate_tree(json.loads(data), draw)))
                return
            lines = data.splitlines() or [b"{}"]
            at = draw.randrange(len(lines))
            lines[at] = dumps(mutate_tree(json.loads(lines[at]), draw))
            path.write_bytes(b"\n".join(lines) + b"\n")
            return
    if path.suffix in (".yaml", ".csv", ".tsv", ".txt") and draw.random() < 0.7:
        lines = data.splitlines(keepends=True) or [b""]
        at = draw.randrange(len(lines))
        key, separator, _ = lines[at].partition(b": " if path.suffix == ".yaml" else b",")
        hostile = [
            b"*a",
            b"&a [*a]",
            b"!!python/object:os.system x",
            b"[" * 100,
            b"9" * 5000,
            b"{",
            b"\xff",
            b"\0",
        ]
        text = draw.choice([*hostile, *(dumps(value) for value in HOSTILE)])
        lines[at] = draw.choice(
            (key + separator + text + b"\n", text + b"\n", lines[at] * 3, b"  " + lines[at])
        )
        path.write_bytes(b"".join(lines))
        return
    path.write_bytes(mutate_bytes(data, draw))


def mutate_checkpoint(path: Path, draw: random.Random) -> None:
    """Mutate the state or a tensor of a checkpoint or a saved method, its checksum recomputed."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    from wdae.storage.checkpoint import _digest

    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata())
    text = metadata["state"]
    if draw.random() < 0.7:
        text = dumps(mutate_tree(json.loads(text), draw)).decode()
    elif tensors:
        name = draw.choice(sorted(tensors))
        tensor = tensors.pop(name)
        odd = [
            tensor.double(),
            tensor.reshape(-1),
            torch.full_like(tensor, -1),
            tensor[None],
            None,
        ]
        odd += [torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor + 2**40]
        odd += [torch.zeros(3, dtype=tensor.dtype), torch.zeros(0, dtype=tensor.dtype)]
        other = draw.choice(odd)
        if other is not None:
            tensors[draw.choice((name, name, name, "other"))] = other.contiguous().clone()
    metadata |= {"state": text, "sha256": _digest(tensors, text)}
    save_file(tensors, path, metadata)


def mutate(place: Path, draw: random.Random, *, links: bool) -> None:
    """Mutate an artefact; of a folder some files, and at times links and strange names among them."""
    if place.is_file():
        mutate_file(place, draw)
        return
    files = sorted(path for path in place.rglob("*") if path.is_file())
    manifests = [path for path in files if path.suffix in (".json", ".yaml")]
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        path = draw.choice(manifests if manifests and draw.random() < 0.6 else files)
        if path.is_symlink() or not path.is_file():
            continue
        match draw.randrange(20):
            case 0:
                path.unlink()
            case 1 if links:
                path.unlink()
                path.symlink_to(place.parent / "outside" / draw.choice(("secret.safetensors", "gone")))
            case 2:
                path.unlink()
                path.mkdir()
            case 3:
                path.unlink()
                os.mkfifo(path)
            case _:
                mutate_file(path, draw)
    if draw.random() < 0.9:
        reseal(place, everything=draw.random() < 0.8)


def reseal(place: Path, *, everything: bool = True) -> None:
    """Recompute the checksums of every manifest, as anyone can; ``everything``: of the listed files too."""
    for path in place.rglob("*.json"):
        if not path.is_file() or path.is_symlink():
            continue
        try:
            value = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict) or "sha256" not in value:
            continue
        if everything and isinstance(value.get("files"), dict):
            for name, entry in value["files"].items():
                file = path.parent / str(name)[:200].replace("\0", "")
                if isinstance(entry, dict) and file.is_file() and ".." not in str(name):
                    data = file.read_bytes()
                    entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        seal(value)
        path.write_bytes(dumps(value))


def seal(value: dict[str, Any]) -> dict[str, Any]:
    """The manifest with its own checksum recomputed."""
    value.pop("sha256", None)
    with contextlib.suppress(RecursionError):
        value["sha256"] = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    return value


def dumps(value: Any) -> bytes:
    """JSON, of values too deep for it too."""
    try:
        return json.dumps(value).encode()
    except RecursionError:
        return b"[" * 3000 + b"]" * 3000
