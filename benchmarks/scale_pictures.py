"""Extraction by a Ray cluster of two workers, beside two shards on the same cores; kills; memory.

python benchmarks/scale_pictures.py PICTURES --overhead 20000 [--backbone conv4|lite0]
python benchmarks/scale_pictures.py PICTURES --kills 10 --memory 10000 200000

PICTURES is a folder of pictures at any depth; they are repeated up to each count. The cluster is two nodes of
one core each (``ray start``), separate processes on this machine. ``--overhead`` compares times and banks;
``conv4`` is an untrained network of four layers at 84 px: the quicker the network, the more an engine costs
beside it. ``--kills`` ends a worker or the driver at random and compares the bank with the shards'.
``--memory`` shows the most memory of their own that driver and workers held. These two embed at 16 px, so
that most of the work is reading. Each piece adds to results/scale/scale-pictures.json.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from common import RESULTS, Pieces
from wdae.bank import FeatureBank
from wdae.classifier.picture_backbone import BACKBONE
from wdae.data.decode import SUFFIXES
from wdae.stage1.model_file import load_model, save_model
from wdae.stage1.recognition_model import build_recognition_model

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "WDAE_PROGRESS": "off", "RAY_AUTH_MODE": "disabled"}
WDAE = [sys.executable, "-c", "from wdae.cli.main import main; import sys; main(sys.argv[1:])"]
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--block"]
CLASSES = [f"class {i}" for i in range(10)]


class Cluster:
    """Two nodes of one core each; it ends what it started and nothing else."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        more = ["--object-store-memory=500000000"]
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
        self.nodes = [self._start(*head, *more)]
        self._wait(1)
        self.nodes.append(self._start(f"--address={self.address}", *more))
        self._wait(2)

    @staticmethod
    def _start(*words: str) -> subprocess.Popen[bytes]:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([*RAY, *words], env=ENVIRONMENT, start_new_session=True, **quiet)

    def _wait(self, nodes: int) -> None:
        """Until so many nodes answer."""
        ask = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level=50);"
        ask += "print(sum(node['Alive'] for node in ray.nodes()))"
        for _ in range(20):
            words = [sys.executable, "-c", ask, self.address]
            told = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True)
            if told.stdout.split()[-1:] == [str(nodes)]:
                return
            time.sleep(1)
        raise SystemExit(f"no cluster of {nodes} nodes: {told.stderr[-500:]}")

    def processes(self) -> list[psutil.Process]:
        """Everything that belongs to the nodes."""
        found = []
        for node in self.nodes:
            if node.poll() is None:
                found += psutil.Process(node.pid).children(recursive=True)
        return found

    def workers(self) -> list[psutil.Process]:
        """The actors that embed."""
        return [one for one in self.processes() if "MapWorker" in _title(one)]

    def stop(self) -> None:
        for one in self.processes():
            _end(one)
        for node in self.nodes:
            node.kill()
            node.wait()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _cpu_s(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.Error:
        return 0.0


class Work(threading.Thread):
    """Seconds of all cores that some processes use, as last seen of each: some end meanwhile."""

    def __init__(self, processes: Callable[[], list[psutil.Process]]) -> None:
        super().__init__(daemon=True)
        self.processes, self.over = processes, threading.Event()
        self.before = {one.pid: _cpu_s(one) for one in processes()}
        self.used = dict(self.before)
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.5):
            self.look()

    def look(self) -> None:
        for one in self.processes():
            self.used[one.pid] = max(_cpu_s(one), self.used.get(one.pid, 0.0))

    def done(self) -> float:
        self.over.set()
        self.join()
        self.look()
        return sum(self.used.values()) - sum(self.before.values())


def _end(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return


class Peak(threading.Thread):
    """The most memory of its own (no files, nothing shared) that any one of some processes held, in MiB."""

    def __init__(self, processes: Callable[[], list[psutil.Process]]) -> None:
        super().__init__(daemon=True)
        self.processes, self.most, self.over = processes, 0.0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.25):
            for one in self.processes():
                try:
                    status = Path(f"/proc/{one.pid}/status").read_text()
                except OSError:
                    continue
                if "RssAnon:" in status:
                    self.most = max(self.most, int(status.split("RssAnon:")[1].split()[0]) / 1024)


class Bench:
    """The pictures, the cluster and a place for banks."""

    def __init__(self, pictures: Path, place: Path, backbone: str, chunk: int) -> None:
        self.files = sorted(str(p) for p in pictures.absolute().rglob("*") if p.suffix.lower() in SUFFIXES)
        self.place, self.backbone, self.chunk = place, backbone, chunk
        shipped = load_model(BACKBONE)
        of_conv4: dict[str, Any] = {"backbone": "conv4-64", "mean": [0.5] * 3, "std": [0.2] * 3}
        networks: dict[str, dict[str, Any]] = {
            name: of_conv4 | {"backbone_options": {"image_size": side}, "image_size": side}
            for name, side in (("small", 16), ("conv4", 84))
        }
        networks["shipped"] = dict(shipped.card)
        for name, facts in networks.items():
            made = build_recognition_model(facts["backbone"], facts["backbone_options"], len(CLASSES), seed=3)
            if name == "shipped":
                made.backbone.load_state_dict(shipped.network.backbone.state_dict())
            card = {key: value for key, value in facts.items() if key not in ("class_ids", "started_from")}
            save_model(place / name, made, card | {"recipe": {}, "figures": {}, "class_names": CLASSES})

    @cached_property
    def cluster(self) -> Cluster:
        """Started when it is needed: until then the cores are the shards'."""
        return Cluster(self.place / "ray")

    def stop(self) -> None:
        if "cluster" in self.__dict__:
            self.cluster.stop()

    def listed(self, count: int) -> Path:
        """A list of so many pictures, repeated where there are fewer."""
        file = self.place / f"list-{count}.csv"
        n = len(self.files)
        lines = [f"{self.files[i % n]},{CLASSES[i % n % len(CLASSES)]}" for i in range(count)]
        file.write_text("\n".join(["path,label", *lines]))
        return file

    def extract(self, count: int, out: str, backbone: str, *more: str) -> subprocess.Popen[bytes]:
        words = ["extract", "--data", str(self.listed(count)), "--backbone", backbone]
        words += ["--chunk", str(self.chunk), "--precision", "float32", "-o", str(self.place / out), *more]
        return subprocess.Popen([*WDAE, *words], env=ENVIRONMENT, stdout=subprocess.DEVNULL)

    def by_ray(self, count: int, out: str, backbone: str) -> subprocess.Popen[bytes]:
        return self.extract(count, out, backbone, "--engine", "ray", "--ray-address", self.cluster.address)

    def by_shards(self, count: int, out: str, backbone: str) -> float:
        """Two shards at once, each on one core, merged; seconds."""
        began = time.perf_counter()
        jobs = [self.extract(count, f"{out}-{n}", backbone, "--shard", f"{n}/2") for n in (1, 2)]
        assert [job.wait() for job in jobs] == [0, 0]
        parts = [str(self.place / f"{out}-{n}") for n in (1, 2)]
        merge = [*WDAE, "bank", "merge", *parts, "-o", str(self.place / out)]
        subprocess.run(merge, check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    def digest(self, out: str) -> str:
        return FeatureBank.open(self.place / out).digest

    def overhead(self, count: int) -> dict[str, Any]:
        own = self.place / self.backbone
        backbone = str(own) if own.is_dir() else self.backbone
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        shards_s = self.by_shards(count, "shards", backbone)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        shards_cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        time.sleep(5)  # nodes that were just started are still busy with themselves
        cluster = Work(self.cluster.processes)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        assert self.by_ray(count, "by-ray", backbone).wait() == 0
        ray_s = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        driver_cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        ray_cpu_s = driver_cpu_s + cluster.done()
        return {
            "pictures": count,
            "different": min(count, len(self.files)),
            "backbone": self.backbone,
            "shards_s": shards_s,
            "ray_s": ray_s,
            "overhead": ray_s / shards_s - 1,
            "shards_cpu_s": shards_cpu_s,
            "ray_cpu_s": ray_cpu_s,
            "driver_cpu_s": driver_cpu_s,
            "cpu_overhead": ray_cpu_s / shards_cpu_s - 1,
            "same_digest": self.digest("by-ray") == self.digest("shards"),
        }

    def memory(self, count: int) -> dict[str, Any]:
        job = self.by_ray(count, f"memory-{count}", str(self.place / "small"))
        driver, workers = Peak(lambda: [psutil.Process(job.pid)]), Peak(self.cluster.workers)
        began = time.perf_counter()
        assert job.wait() == 0
        driver.over.set()
        workers.over.set()
        found = {"pictures": count, "seconds": time.perf_counter() - began}
        return found | {"driver_peak_mib": driver.most, "worker_peak_mib": workers.most}

    def kills(self, wanted: int, count: int, pause: list[float], seed: int) -> dict[str, Any]:
        """End a worker or the driver, so many times, at random; the same command goes on."""
        chance, small = random.Random(seed), str(self.place / "small")
        self.by_shards(count, "whole", small)
        killed, runs = {"worker": 0, "driver": 0}, 0
        while sum(killed.values()) < wanted:
            runs += 1
            out = f"killed-{runs}"
            job = self.by_ray(count, out, small)
            while job.poll() is None:
                time.sleep(chance.uniform(*pause))
                workers = self.cluster.workers()
                if job.poll() is not None or sum(killed.values()) == wanted or not workers:
                    continue  # nothing is embedded yet: a kill would show nothing
                if chance.random() < 0.5:
                    _end(chance.choice(workers))
                    killed["worker"] += 1
                else:
                    job.send_signal(signal.SIGKILL)
                    job.wait()
                    killed["driver"] += 1
                    if (self.place / out).exists():  # it was killed after the bank appeared
                        break
                    job = self.by_ray(count, out, small)
                print(killed, flush=True)
            done = job.returncode in (0, -signal.SIGKILL)
            assert done and self.digest(out) == self.digest("whole"), out
        return {"pictures": count, "runs": runs, **killed, "same_digest": True}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--overhead", type=int, nargs="*", default=[], help="numbers of pictures")
    parser.add_argument("--memory", type=int, nargs="*", default=[], help="numbers of pictures")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--count", type=int, default=20_000, help="pictures of an extraction that is killed")
    parser.add_argument("--pause", type=float, nargs=2, default=[2.0, 8.0], help="seconds between kills")
    parser.add_argument("--seed", type=int, default=0, help="draws who is killed and when")
    parser.add_argument("--backbone", default="shipped", help="shipped, conv4, or what wdae extract takes")
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--out", type=Path, default=RESULTS / "scale")
    args = parser.parse_args()
    facts: dict[str, Any] = {"chunk": args.chunk, "nodes": 2, "cores": 2}
    kept = Pieces("scale-pictures", args.out, facts, ("pictures", "seed"))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args.pictures, Path(folder), args.backbone, args.chunk)
        try:
            for count in args.overhead:
                kept.add("overhead", bench.overhead(count) | {"load": os.getloadavg()[0]})
            for count in args.memory:
                kept.add("memory", bench.memory(count))
            if args.kills:
                found = bench.kills(args.kills, args.count, args.pause, args.seed)
                kept.add("kills", {"seed": args.seed, **found})
        finally:
            bench.stop()


if __name__ == "__main__":
    main()
