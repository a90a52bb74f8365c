"""Results: a mean with its interval, one method on one protocol, and tables of them.

Files hold fractions, tables show percent. ``NAME.json`` (schema below) and ``NAME.safetensors`` (one float32
vector per metric, one value per episode) belong together::

    {"format": "wdae-result", "version": 2,
     "method": "wdae-gnn", "protocol": "few-way", "n_way": 5, "n_shot": 1, "n_query": 15,
     "seed": 0, "n_episodes": 20000, "bank": "...", "bank_digest": "...",
     "metrics": {"novel": {"mean": 0.584, "ci95": 0.0012, "n": 20000}, ...},
     "info": {...},
     "values": {"bytes": ..., "sha256": ...},  # of NAME.safetensors
     "sha256": ...}                            # of this object's other keys

Version 1 had neither of the last two.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from wdae.errors import StorageError, WdaeError, nearest
from wdae.storage.files import open_regular, write_bytes
from wdae.storage.manifest import (
    FileEntry,
    check_digest,
    check_version,
    digest,
    entry,
    open_listed,
    verifying,
)
from wdae.storage.records import Count, Digest, Record, Size, Text, read_json, read_record, write_json
from wdae.storage.tensors import arrays_in

FORMAT, VERSION = "wdae-result", 2
METRICS = ("novel", "base", "all", "all_prior", "harmonic", "area")
_EPISODES = ("protocol", "n_way", "n_shot", "n_query", "seed", "n_episodes", "bank", "bank_digest")
Values = npt.NDArray[np.float32]


Word = Annotated[str, Field(pattern="^[A-Za-z0-9-]{0,100}$")]
"""Part of a result's file name."""


class _EstimateRecord(Record):
    mean: float
    ci95: float | None
    n: Count


class _Facts(Record):
    """What tables read of ``info``; the other keys are for people."""

    model_config = ConfigDict(extra="allow")

    part: Word | None = None
    transductive: bool = False
    start_kept: bool = False
    parameters: Count = 0
    training_seconds: float = 0.0
    episodes_per_second: float = 0.0


class _ResultRecord(Record):
    """``NAME.json``."""

    format: Text
    version: int
    method: Text
    protocol: Word
    n_way: Size
    n_shot: Count
    n_query: Count | None = None
    seed: int
    n_episodes: Count
    bank: Text | None = None
    bank_digest: Text | None = None
    metrics: Annotated[dict[str, _EstimateRecord], Field(min_length=1, max_length=1_000)]
    info: _Facts | None = None


class _SealedRecord(_ResultRecord):
    """The same since version 2."""

    values: FileEntry
    sha256: Digest


@dataclass(frozen=True)
class Estimate:
    """A mean over episodes with the half-width of its 95 % interval, 1.96 s / sqrt(n)."""

    mean: float
    ci95: float
    n: int

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Estimate:
        """The estimate from one value per episode; a single episode has no interval (NaN).

        >>> Estimate.of([0.25, 0.75, 0.25, 0.75]).percent()
        '50.00 ± 28.29'
        """
        array = np.asarray(values, dtype=np.float64).ravel()
        if array.size == 0:
            raise WdaeError("no episodes to take a mean over; ask for at least 1")
        spread = 1.96 * float(array.std(ddof=1)) / math.sqrt(array.size) if array.size > 1 else math.nan
        return cls(float(array.mean()), spread, int(array.size))

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval leaves zero out: for a difference, whether it is more than chance."""
        return abs(self.mean) > self.ci95

    def percent(self, *, signed: bool = False) -> str:
        """Mean and interval in percent.

        >>> Estimate(0.5712, 0.0013, 600).percent()
        '57.12 ± 0.13'
        """
        mean = f"{100 * self.mean:{'+' if signed else ''}.2f}"
        return mean if math.isnan(self.ci95) else f"{mean} ± {100 * self.ci95:.2f}"

    def marked(self) -> tuple[str, str]:
        """A difference in points, and "gain" or "loss" where the interval excludes zero."""
        mark = "" if not self.excludes_zero else "gain" if self.mean > 0 else "loss"
        return self.percent(signed=True), mark

    def starred(self) -> str:
        """A difference in points, with a star where the interval excludes zero."""
        return self.percent(signed=True) + ("*" if self.excludes_zero else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON, where an interval that does not exist is null."""
        return {"mean": self.mean, "ci95": None if math.isnan(self.ci95) else self.ci95, "n": self.n}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Estimate:
        """From JSON."""
        return cls(value["mean"], math.nan if value["ci95"] is None else value["ci95"], value["n"])

    def __str__(self) -> str:
        return self.percent()


@dataclass(frozen=True, eq=False)
class Result:
    """One method on one protocol.

    ``metrics`` has novel, base, all, all_prior, harmonic and area where they were asked for, and the same
    names but area with ``_top5``; ``per_episode`` the values behind them, in the order of the episodes.

    >>> facts = {"protocol": "few-way", "n_way": 5, "n_shot": 1, "seed": 0}
    >>> result = Result.of({"novel": [0.5, 0.7]}, method="mine", **facts)
    >>> str(result.metrics["novel"]), result.n_episodes
    ('60.00 ± 19.60', 2)
    """

    method: str
    protocol: str
    n_way: int
    n_shot: int
    seed: int
    n_episodes: int
    metrics: Mapping[str, Estimate]
    per_episode: Mapping[str, Values] = field(repr=False)
    n_query: int | None = None
    bank: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    bank_digest: str | None = None

    @classmethod
    def of(
        cls,
        per_episode: Mapping[str, Any],
        *,
        method: str,
        protocol: str,
        n_way: int,
        n_shot: int,
        seed: int,
        n_query: int | None = None,
        bank: str | None = None,
        info: Mapping[str, Any] | None = None,
        bank_digest: str | None = None,
    ) -> Result:
        """A result from per-episode values (arrays or tensors, one vector per metric, equally long)."""
        rows = {name: _vector(values) for name, values in per_episode.items()}
        lengths = {name: len(row) for name, row in rows.items()}
        if len(set(lengths.values())) != 1:
            raise WdaeError(f"every metric needs one value per episode, equally many; got {lengths}")
        metrics = {name: Estimate.of(row) for name, row in rows.items()}
        n = next(iter(lengths.values()))
        where = (n_query, bank, dict(info or {}), bank_digest)
        return cls(method, protocol, n_way, n_shot, seed, n, metrics, rows, *where)

    @property
    def name(self) -> str:
        """What its files are called."""
        part = self.info.get("part")
        words = file_stem(self.method, self.protocol, self.n_way, self.n_shot, self.seed)
        return words if part in (None, "novel") else f"{words}-{part}"

    @property
    def label(self) -> str:
        """The method's name as tables show it: † as it started, or marked where queries inform each other."""
        name = f"{self.method} †" if self.info.get("start_kept") else self.method
        return f"{name} (transductive)" if self.info.get("transductive") else name

    @property
    def episodes(self) -> dict[str, Any]:
        """What determines the episodes: two results that agree in it can be paired."""
        return {key: getattr(self, key) for key in _EPISODES} | {"part": self.info.get("part")}

    def to_dict(self) -> dict[str, Any]:
        """The JSON schema above."""
        estimates = {name: estimate.to_dict() for name, estimate in self.metrics.items()}
        head = {"format": FORMAT, "version": VERSION, "method": self.method}
        head |= {key: getattr(self, key) for key in _EPISODES}
        if self.bank_digest is None:  # of before there was one
            del head["bank_digest"]
        return {**head, "metrics": estimates, "info": dict(self.info)}

    def save(self, folder: str | Path) -> Path:
        """Write the result into a folder and return its JSON file, which is written last."""
        from safetensors.numpy import save

        path = Path(folder) / f"{self.name}.json"
        beside = path.with_suffix(".safetensors")
        write_bytes(beside, save({name: np.ascontiguousarray(row) for name, row in self.per_episode.items()}))
        value = json.loads(json.dumps(self.to_dict() | {"values": entry(beside)}))
        write_json(path, value | {"sha256": digest(value)})
        return path

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a result from its JSON file and the values beside it."""
        path = Path(path)
        if not is_result(path):
            raise StorageError(f"{path} is no result file; give one of a run's results folder")
        value = read_json(path)
        beside = path.with_suffix(".safetensors")
        version = check_version(value.get("version"), VERSION, "a result", path)
        data = read_record(_ResultRecord if version == 1 else _SealedRecord, path)
        if isinstance(data, _SealedRecord):
            if verifying() and data.sha256 != digest({k: v for k, v in value.items() if k != "sha256"}):
                raise StorageError(f"{path} is altered: its checksum does not match; copy it again")
            with open_listed(path.parent, beside.name, data.values) as file:
                check_digest(file, data.values, beside)
                rows, _ = arrays_in(file, beside)
        else:
            with open_regular(beside, follow=False) as file:
                rows, _ = arrays_in(file, beside)
        shapes = {(str(row.dtype), row.shape) for row in rows.values()}
        if set(rows) != set(data.metrics) or shapes != {("float32", (data.n_episodes,))}:
            raise StorageError(
                f"{beside} does not belong to {path}: other metrics or another number of episodes"
            )
        facts = data.model_dump(exclude={"format", "version", "metrics", "info", "values", "sha256"})
        metrics = {name: Estimate.from_dict(value.model_dump()) for name, value in data.metrics.items()}
        ordered = {name: rows[name] for name in metrics}
        info = data.info.model_dump(exclude_unset=True) if data.info is not None else {}
        return cls(**facts, metrics=metrics, per_episode=ordered, info=info)


def file_stem(method: str, protocol: str, n_way: int, n_shot: int, seed: int) -> str:
    """What the files of a result are called: another name for each method, also where signs differ.

    >>> file_stem("wdae-gnn+", "few-way", 5, 1, 0)
    'wdae-gnn+-few-way-5way-1shot-seed0'
    """
    return f"{file_name(method)}-{protocol}-{n_way}way-{n_shot}shot-seed{seed}"


def file_name(method: str) -> str:
    """A method's name as part of a file's: another for each method, whatever signs it has.

    >>> file_name("wdae-gnn+"), file_name("lda:shrink=0.9")
    ('wdae-gnn+', 'lda-shrink-0.9-9263f1')
    """
    safe = re.sub(r"[^a-zA-Z0-9.+-]+", "-", method)
    return safe if safe == method else safe + "-" + hashlib.sha256(method.encode()).hexdigest()[:6]


def is_result(path: str | Path) -> bool:
    """Whether a JSON file says of itself that it is a result."""
    data = read_json(path)
    return isinstance(data, dict) and data.get("format") == FORMAT


def paired(a: Result, b: Result, metric: str) -> Estimate:
    """The gain of ``a`` over ``b`` on the same episodes, with the interval of the per-episode differences.

    >>> facts = {"protocol": "few-way", "n_way": 5, "n_shot": 1, "seed": 0}
    >>> ours = Result.of({"novel": [0.7, 0.5, 0.9]}, method="ours", **facts)
    >>> theirs = Result.of({"novel": [0.6, 0.5, 0.7]}, method="theirs", **facts)
    >>> paired(ours, theirs, "novel").percent(signed=True)
    '+10.00 ± 11.32'
    """
    for result in (a, b):
        if metric not in result.per_episode:
            hint = nearest(metric, result.per_episode)
            raise WdaeError(f"{result.method} was not measured on {metric!r}{hint}")
    differing = [
        f"{key} {value!r} and {b.episodes[key]!r}"
        for key, value in a.episodes.items()
        if value != b.episodes[key]
    ]
    if differing:
        raise WdaeError(
            f"{a.method} and {b.method} were not measured on the same episodes ({'; '.join(differing)}); "
            "evaluate both with the same bank, protocol, seed and number of episodes"
        )
    x, y = (np.asarray(r.per_episode[metric], dtype=np.float64) for r in (a, b))
    return Estimate.of(x - y)


def _vector(values: Any) -> Values:
    if hasattr(values, "detach"):
        values = values.detach().cpu().float().numpy()
    row = np.array(values, dtype=np.float32)
    if row.ndim != 1 or row.size == 0:
        raise WdaeError(f"per-episode values are one vector with a value per episode; got shape {row.shape}")
    return row
