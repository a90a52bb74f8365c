"""Extraction by a Ray cluster of two workers against two shards on the same cores, and what kills do to it.

python benchmarks/scale_pictures.py PICTURES [--counts 10000 20000] [--kills 10] [--backbone lite0]

PICTURES is a folder of pictures at any depth; they are repeated up to each count. The cluster is two nodes of
one core each (``ray start``), separate processes on this machine. ``--kills`` ends a worker or the driver at
random, so many times, and compares the bank's digest with that of the shards. Writes scale-pictures.json.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from common import keep
from wdae.bank import FeatureBank
from wdae.data.decode import SUFFIXES

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "WDAE_PROGRESS": "off", "RAY_AUTH_MODE": "disabled"}
WDAE = [sys.executable, "-c", "from wdae.cli.main import main; import sys; main(sys.argv[1:])"]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


class Cluster:
    """Two nodes of one core each, with folders of their own; ends what it started and nothing else."""

    def __init__(self, folder: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
        self.nodes = [self._start(*head)]
        time.sleep(15)
        self.nodes.append(self._start(f"--address={self.address}"))
        time.sleep(15)

    @staticmethod
    def _start(*words: str) -> subprocess.Popen[bytes]:
        command = [*RAY, "start", "--num-cpus=1", "--block", *words]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True, **quiet)

    def processes(self) -> list[psutil.Process]:
        found = []
        for node in self.nodes:
            if node.poll() is None:
                found += psutil.Process(node.pid).children(recursive=True)
        return found

    def workers(self) -> list[psutil.Process]:
        """The actors that embed."""
        return [one for one in self.processes() if "MapWorker" in " ".join(_words(one))]

    def stop(self) -> None:
        for one in self.processes():
            _end(one)
        for node in self.nodes:
            node.kill()


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _end(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return


def listed(pictures: Path, count: int, file: Path) -> Path:
    """A list of so many pictures, repeated where there are fewer."""
    found = sorted(p for p in pictures.rglob("*") if p.suffix.lower() in SUFFIXES)
    lines = [f"{found[i % len(found)]},class {i % len(found) % 10}" for i in range(count)]
    file.write_text("\n".join(["path,label", *lines]))
    return file


def extract(data: Path, out: Path, args: argparse.Namespace, *more: str) -> subprocess.Popen[bytes]:
    words = ["extract", "--data", str(data), "--backbone", args.backbone, "--chunk", str(args.chunk)]
    words += ["--precision", "float32", "-o", str(out), *more]
    return subprocess.Popen([*WDAE, *words], env=ENVIRONMENT, stdout=subprocess.DEVNULL)


class Peak(threading.Thread):
    """The most memory that any one of some processes held, in MiB, without what it shares."""

    def __init__(self, processes: Any) -> None:
        super().__init__(daemon=True)
        self.processes, self.most, self.stop = processes, 0.0, threading.Event()

    def run(self) -> None:
        while not self.stop.wait(1.0):
            for one in self.processes():
                try:
                    info = one.memory_info()
                    self.most = max(self.most, (info.rss - info.shared) / 2**20)
                except psutil.Error:
                    continue


def measure(count: int, cluster: Cluster, place: Path, args: argparse.Namespace) -> dict[str, Any]:
    data = listed(args.pictures, count, place / f"list-{count}.csv")
    began = time.perf_counter()
    jobs = [extract(data, place / f"part-{count}-{n}", args, "--shard", f"{n}/2") for n in (1, 2)]
    assert all(job.wait() == 0 for job in jobs)
    shards_s = time.perf_counter() - began
    parts = [str(place / f"part-{count}-{n}") for n in (1, 2)]
    whole = place / f"whole-{count}"
    subprocess.run([*WDAE, "bank", "merge", *parts, "-o", str(whole)], check=True, env=ENVIRONMENT)
    by_ray = place / f"ray-{count}"
    began = time.perf_counter()
    job = extract(data, by_ray, args, "--engine", "ray", "--ray-address", cluster.address)
    peak = Peak(cluster.workers)
    peak.start()
    assert job.wait() == 0
    ray_s = time.perf_counter() - began
    peak.stop.set()
    digests = [FeatureBank.open(path).digest for path in (whole, by_ray)]
    return {
        "pictures": count,
        "shards_s": shards_s,
        "ray_s": ray_s,
        "overhead": ray_s / shards_s - 1,
        "worker_peak_mib": peak.most,
        "same_digest": digests[0] == digests[1],
        "digest": digests[0],
        "load": os.getloadavg()[0],
    }


def kill(count: int, cluster: Cluster, place: Path, args: argparse.Namespace, digest: str) -> dict[str, Any]:
    """End a worker or the driver, so many times, at random; the same command goes on."""
    chance, out = random.Random(0), place / "killed"
    data = place / f"list-{count}.csv"
    more = ("--engine", "ray", "--ray-address", cluster.address)
    job, killed = extract(data, out, args, *more), {"worker": 0, "driver": 0}
    while sum(killed.values()) < args.kills:
        time.sleep(chance.uniform(*args.pause))
        if job.poll() is not None:
            assert job.returncode == 0, "it ended before all kills; give more pictures"
            break
        workers = cluster.workers()
        if workers and chance.random() < 0.5:
            _end(chance.choice(workers))
            killed["worker"] += 1
        else:
            job.send_signal(signal.SIGKILL)
            job.wait()
            killed["driver"] += 1
            job = extract(data, out, args, *more)
        print(killed, flush=True)
    assert job.wait() == 0
    return {"pictures": count, **killed, "same_digest": FeatureBank.open(out).digest == digest}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--counts", type=int, nargs="+", default=[10_000, 20_000])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--pause", type=float, nargs=2, default=[5.0, 30.0], help="seconds between kills")
    parser.add_argument("--backbone", default="lite0")
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--port", type=int, default=26379)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        cluster = Cluster(place / "ray", args.port)
        try:
            record: dict[str, Any] = {"backbone": args.backbone, "chunk": args.chunk, "rows": []}
            for count in args.counts:
                record["rows"].append(measure(count, cluster, place, args))
                print(record["rows"][-1], flush=True)
            if args.kills:
                last = record["rows"][-1]
                record["kills"] = kill(last["pictures"], cluster, place, args, last["digest"])
                print(record["kills"], flush=True)
            print(keep("scale-pictures", record, args.out))
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
