"""The service under load, beside a bare FastAPI route that runs the same backbone without batching.

    python benchmarks/serve.py load               # 32 clients, one client, no backbone
    python benchmarks/serve.py half               # half of that load: half the clients, half the rate
    python benchmarks/serve.py start              # `wdae serve` until its page and its models are there
    python benchmarks/serve.py teach              # five classes of five pictures each
    python benchmarks/serve.py large              # a model with 1,000 classes and 20,000 examples
    python benchmarks/serve.py memory --count 100000
    python benchmarks/serve.py restart            # two servers behind nginx, restarted in turn under load
    python benchmarks/serve.py same --data DIR    # MiniImageNet through the service and the library
    python benchmarks/serve.py page --data DIR    # the same, taught on the page in Chromium
    python benchmarks/serve.py open               # how soon the page can be used, and a class is known

Servers are processes of their own; this one sends the requests. Rounds of servers take turns, so that a
machine that others use slows all of them alike. Figures go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import heapq
import io
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import wdae
from common import keep

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from nginx_server import behind_nginx  # type: ignore[import-not-found]
from postgres_server import free_port  # type: ignore[import-not-found]

BARE = """
import sys, uvicorn, torch, io
from fastapi import FastAPI, UploadFile
import wdae
from wdae.classifier.predictions import predictions
from wdae.data.decode import decode
threads = int(sys.argv[2])
torch.set_num_threads(threads)
model = wdae.embedded_model()
backbone = model.backbone
model.head
network = lambda pixels: backbone.network(rule.prepare(torch.from_numpy(pixels).permute(0, 3, 1, 2)))
if sys.argv[3:] == ["graph"]:
    from wdae.backbones.graphs import start
    from wdae.classifier.picture_backbone import BACKBONE, of_stage1
    own = of_stage1(BACKBONE)
    weights = {name: tensor.numpy() for name, tensor in own.tensors.items()}
    graph = start(own.name, own.card["backbone_options"], weights, backbone.preprocessing)
    network = lambda pixels: torch.from_numpy(graph.features(pixels))
rule = backbone.preprocessing
app = FastAPI()
@app.post("/")
def predict(file: UploadFile):
    pixels = rule(decode(file.file.read(), rule.at_least))
    with torch.no_grad():
        found = predictions(model, network(pixels[None].copy()).float(), top=5)[0]
    return {"classes": found.classes, "probabilities": found.probabilities, "unknown": found.unknown}
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", timeout_keep_alive=75)
"""
EMPTY = """
import sys, torch
from pathlib import Path
import wdae.serve.engine.models as models
from wdae.serve.run import serve
from wdae.serve.settings import Settings
found = torch.randn(64, 400)
models.embedded = lambda starting, pictures: found[: len(pictures)]
serve(Settings(data=Path(sys.argv[2]), port=int(sys.argv[1]), limits={"requests": 10**6}))
"""
SERVICE = """
import sys
from pathlib import Path
from wdae.serve.run import serve
from wdae.serve.settings import Settings
serve(Settings(data=Path(sys.argv[2]), port=int(sys.argv[1]), limits={"requests": 10**6}))
"""


def picture(seed: int) -> bytes:
    """A JPEG of 84 pixels a side, as MiniImageNet's are."""
    draw = np.random.default_rng(seed)
    small = Image.fromarray(draw.integers(0, 255, (12, 12, 3), dtype=np.uint8))
    out = io.BytesIO()
    small.resize((84, 84), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


@contextmanager
def server(code: str, *words: object, port: int | None = None) -> Iterator[tuple[int, int]]:
    """A server of its own: its port and its process."""
    port = port or free_port()
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(port), *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        until = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError("the server did not start") from None
                time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(60)


def request(path: str, data: bytes) -> bytes:
    """A form with a picture, as bytes on the wire."""
    edge = "wdaeserve"
    head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n'
    body = head.encode() + b"Content-Type: image/jpeg\r\n\r\n" + data + f"\r\n--{edge}--\r\n".encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: multipart/form-data; boundary={edge}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Connection:
    """One client that keeps its connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, sent: bytes) -> float:
        """Seconds from a request to all of its answer, which must be 200."""
        began = time.perf_counter()
        self.writer.write(sent)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        body = await self.reader.readexactly(length)
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(f"{head.decode()}{body[:300]!r}")
        return time.perf_counter() - began


async def closed_loop(port: int, path: str, clients: int, seconds: float) -> tuple[float, list[float]]:
    """Clients that ask again as soon as they are answered: requests a second, and how long each took."""
    sent = [request(path, picture(i)) for i in range(32)]
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        mine = await Connection.open(port)
        while time.perf_counter() < end:
            times.append(await mine.ask(sent[(number + len(times)) % len(sent)]))
        mine.writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client(i) for i in range(clients)))
    return len(times) / (time.perf_counter() - began), times


async def open_loop(port: int, path: str, rate: float, seconds: float, *, even: bool = False) -> list[float]:
    """So many requests a second, at random moments or evenly spaced, whatever the answers: their times."""
    sent, draw = [request(path, picture(i)) for i in range(32)], random.Random(0)
    idle = [await Connection.open(port) for _ in range(64)]
    times: list[float] = []

    async def one(number: int, due: float) -> None:
        mine = idle.pop() if idle else await Connection.open(port)
        await mine.ask(sent[number % len(sent)])
        times.append(time.perf_counter() - due)
        idle.append(mine)

    tasks, due, number = [], time.perf_counter(), 0
    end = due + seconds
    while due < end:
        due += 1 / rate if even else draw.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number, due)))
        number += 1
    await asyncio.gather(*tasks)
    return times


def cpu_seconds(process: int) -> float:
    """What a process and its children have computed: on a machine that others use, the fairer figure."""
    total, waiting = 0, [process]
    while waiting:
        one = Path(f"/proc/{waiting.pop()}")
        total += sum(map(int, (one / "stat").read_text().rpartition(")")[2].split()[11:13]))
        for task in (one / "task").iterdir():
            waiting += map(int, (task / "children").read_text().split())
    return total / os.sysconf("SC_CLK_TCK")


def percentile(times: list[float], share: float) -> float:
    return float(np.percentile(np.array(times) * 1000, 100 * share))


def model_path(port: int) -> str:
    with wdae.Client(f"http://127.0.0.1:{port}") as client:
        return f"/api/v1/models/{client.models()[0].id}/predictions?nearest=0"


@contextmanager
def both(folder: Path) -> Iterator[dict[str, tuple[int, int, str]]]:
    """The bare route in three ways and the service, warm: port, process and path of each."""
    with (
        server(BARE, 2) as bare,
        server(BARE, 1) as bare_1,
        server(BARE, 1, "graph") as bare_graph,
        server(SERVICE, folder / "a") as ours,
    ):
        places = {"bare": (*bare, "/"), "bare, one thread": (*bare_1, "/")}
        places |= {"bare, onnxruntime": (*bare_graph, "/"), "service": (*ours, model_path(ours[0]))}
        for port, _, path in places.values():
            asyncio.run(closed_loop(port, path, 4, 2.0))
        yield places


class Figures:
    """Figures by name, of several rounds."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}

    def note(self, name: str, *values: float) -> None:
        """Add to what a name has."""
        self.found.setdefault(name, []).extend(values)

    def middle(self) -> dict[str, float]:
        """The median of each."""
        return {name: round(statistics.median(values), 2) for name, values in self.found.items()}


def load(rounds: int, seconds: float) -> dict[str, Any]:
    """Throughput and latency of all, round by round."""
    figures = Figures()
    with (
        tempfile.TemporaryDirectory() as place,
        both(Path(place)) as places,
        server(EMPTY, Path(place) / "b") as empty,
    ):
        every = places | {"no backbone": (*empty, model_path(empty[0]))}
        asyncio.run(closed_loop(empty[0], every["no backbone"][2], 4, 2.0))
        for _ in range(rounds):
            for name, (port, process, path) in every.items():
                before = cpu_seconds(process)
                rate, times = asyncio.run(closed_loop(port, path, 32, seconds))
                figures.note(f"{name}: requests/s at 32 clients", rate)
                used = cpu_seconds(process) - before
                figures.note(f"{name}: CPU ms a request at 32 clients", 1000 * used / len(times))
                alone = asyncio.run(closed_loop(port, path, 1, seconds / 2))[1]
                figures.note(f"{name}: p50 ms, one client", percentile(alone, 0.5))
                figures.note(f"{name}: p99 ms, one client", percentile(alone, 0.99))
    middle = figures.middle()
    for name in [one for one in places if one != "service"]:
        for figure in ("requests/s at 32 clients", "CPU ms a request at 32 clients"):
            mine, theirs = (middle[f"{one}: {figure}"] for one in ("service", name))
            middle[f"service / {name}, {figure}"] = round(mine / theirs, 2)
    return {"rounds": rounds, "figures": middle}


def ideal(servers: int, load: float, count: int = 300_000) -> float:
    """p99 / p50 of servers that take the same time for every request, and requests at random moments."""
    draw, free, now, times = random.Random(0), [0.0] * servers, 0.0, []
    for _ in range(count):
        now += draw.expovariate(load * servers)
        ends = max(now, heapq.heappop(free)) + 1
        heapq.heappush(free, ends)
        times.append(ends - now)
    return percentile(times, 0.99) / percentile(times, 0.5)


def half(rounds: int, seconds: float) -> dict[str, Any]:
    """Latency at half load: 16 clients instead of 32, and half of the rate that each answered 32 clients at.

    Requests of programs that do not know of each other come at random moments, some of them together; beside
    that stands what two servers would have that take the same time for every request and do nothing else.
    """
    ways = ("16 clients", "half of its rate, at random moments", "half of its rate, evenly spaced")
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as place, both(Path(place)) as places:
        places.pop("bare, one thread")
        rates = {
            name: asyncio.run(closed_loop(port, path, 32, seconds))[0]
            for name, (port, _, path) in places.items()
        }
        for _ in range(rounds):
            for name, (port, _, path) in places.items():
                found = (
                    asyncio.run(closed_loop(port, path, 16, seconds))[1],
                    asyncio.run(open_loop(port, path, rates[name] / 2, seconds)),
                    asyncio.run(open_loop(port, path, rates[name] / 2, seconds, even=True)),
                )
                for way, some in zip(ways, found, strict=True):
                    times.setdefault((name, way), []).extend(some)
    figures = {f"{name}: requests/s at 32 clients": rate for name, rate in rates.items()}
    for (name, way), some in times.items():
        p50, p99 = percentile(some, 0.5), percentile(some, 0.99)
        figures |= {f"{name}: p50 ms, {way}": p50, f"{name}: p99 ms, {way}": p99}
        figures[f"{name}: p99 / p50, {way}"] = p99 / p50
        if name == "service":
            figures[f"service: p99 / p50 of the bare route, {way}"] = p99 / percentile(
                times["bare", way], 0.5
            )
    figures[f"two ideal servers: p99 / p50, {ways[1]}"] = ideal(2, 0.5)
    return {"rounds": rounds, "figures": {name: round(value, 2) for name, value in figures.items()}}


def start() -> dict[str, Any]:
    """Seconds from the command to the page, its script and the models, the first time and later ones."""
    from urllib.request import urlopen

    figures: dict[str, list[float]] = {}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as place:
            for name in ("first", "later"):
                port = free_port()
                words = ["serve", "--data", f"{place}/data", "--port", str(port)]
                began = time.perf_counter()
                process = subprocess.Popen(
                    [sys.executable, "-m", "wdae.cli.main", *words],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                for path in ("", "page.js", "api/v1/about", "api/v1/models"):
                    while True:
                        try:
                            urlopen(f"http://127.0.0.1:{port}/{path}").read()
                            break
                        except OSError:
                            if process.poll() is not None:
                                raise RuntimeError("the server did not start") from None
                            time.sleep(0.01)
                figures.setdefault(f"{name}, s", []).append(time.perf_counter() - began)
                figures.setdefault(f"{name}, CPU s", []).append(cpu_seconds(process.pid))
                process.terminate()
                process.wait(60)
    return {"figures": {name: round(statistics.median(values), 2) for name, values in figures.items()}}


def teach() -> dict[str, Any]:
    """Seconds from sending 25 pictures of five classes until they are known."""
    with (
        tempfile.TemporaryDirectory() as place,
        server(SERVICE, Path(place) / "data") as (port, _),
        wdae.Client(f"http://127.0.0.1:{port}") as client,
    ):
        times = []
        for i in range(6):
            model = client.create_model(f"m{i}").id
            client.predict(model, picture(999))
            shown = {f"class {c}": [picture(1000 * i + 10 * c + k) for k in range(5)] for c in range(5)}
            began = time.perf_counter()
            client.teach(model, shown)
            times.append(time.perf_counter() - began)
    return {"seconds, each": [round(t, 3) for t in times], "seconds, median": statistics.median(times)}


def large(classes: int = 1000, shots: int = 20) -> dict[str, Any]:
    """Seconds until a model of many classes answers: when it is fitted, and when it is opened again."""
    import torch
    from sqlalchemy import insert

    from wdae.serve.database.connection import now
    from wdae.serve.database.tables import (
        ClassName,
        ClassRow,
        FeatureRow,
        ModelRow,
        PictureRow,
        Placement,
        Revision,
    )
    from wdae.serve.engine import Question, answers
    from wdae.serve.run import prepare
    from wdae.serve.service import Service
    from wdae.serve.settings import Settings

    with tempfile.TemporaryDirectory() as place:
        settings = Settings(data=Path(place) / "data")
        prepare(settings)
        here = Service.open(settings)
        starting = here.starting.named("resnet12")
        draw, dim = torch.Generator().manual_seed(0), starting.model.base.dim
        with here.database.writing() as session:
            session.add(ModelRow(id="m", name="m", starting=starting.digest, revision=1, created=now()))
            session.flush()
            names = [f"c{i}" for i in range(classes)]
            known: dict[str, Any] = {"model": "m", "since": 1, "until": None}
            session.execute(insert(ClassRow), [{"model": "m", "id": c, "base": False} for c in names])
            session.execute(insert(ClassName), [known | {"class_id": c, "name": c} for c in names])
            pictures = [(f"{c}p{k}", c) for c in names for k in range(shots)]
            rows = {"model": "m", "width": 1, "height": 1, "size": 1, "thumbnail": b"", "created": now()}
            session.execute(insert(PictureRow), [rows | {"id": p} for p, _ in pictures])
            centres = torch.randn(classes, dim, generator=draw).abs()
            vectors = (
                centres.repeat_interleave(shots, 0) + 0.3 * torch.randn(len(pictures), dim, generator=draw)
            ).abs()
            session.execute(
                insert(FeatureRow),
                [
                    {
                        "model": "m",
                        "picture": p,
                        "backbone": starting.backbone_digest,
                        "vector": v.numpy().tobytes(),
                    }
                    for (p, _), v in zip(pictures, vectors, strict=True)
                ],
            )
            session.execute(insert(Placement), [known | {"picture": p, "class_id": c} for p, c in pictures])
            session.add(
                Revision(model="m", number=1, parent=0, state=1, at=now(), who="", action="teach", summary={})
            )
        here.close()
        times: dict[str, list[float]] = {}
        for turn in range(4):
            here = Service.open(settings)
            here.starting.named("resnet12")  # which a running service has
            began, cpu = time.perf_counter(), time.process_time()
            loaded = here.engine.current("m")
            answers(loaded, vectors[:1], Question())
            name = "opens" if turn else "is fitted"
            times.setdefault(name, []).append(time.perf_counter() - began)
            times.setdefault(f"{name}, CPU", []).append(time.process_time() - cpu)
            here.close()
    return {
        "classes": classes,
        "examples": classes * shots,
        "figures": {f"{name}, s": round(statistics.median(values), 2) for name, values in times.items()},
    }


def memory(count: int) -> dict[str, Any]:
    """The service's memory while it answers, the backbone left out, which is slow."""
    with tempfile.TemporaryDirectory() as place, server(EMPTY, Path(place) / "data") as (port, process):
        path, done, found = model_path(port), 0, []
        while done < count:
            _, times = asyncio.run(closed_loop(port, path, 16, min(20.0, 0.05 + (count - done) / 500)))
            done += len(times)
            status = Path(f"/proc/{process}/status").read_text()
            used = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
            found.append({"answers": done, "MiB": round(used / 1024)})
            print(found[-1], flush=True)
    return {"memory": found}


@contextmanager
def chromium() -> Iterator[tuple[Any, Any]]:
    """A browser, and the script that knows its way on the page."""
    import importlib
    import shutil

    sys.path.append(str(Path(__file__).parents[1] / "scripts"))
    draw_page = importlib.import_module("draw_page")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=draw_page.FLAGS)
        yield started, draw_page
        started.close()


def on_the_page(port: int, shots: dict[str, list[Path]]) -> list[float]:
    """Teach by choosing pictures and typing their names; seconds from Enter until each class is known."""
    took = []
    with chromium() as (browser, draw_page):
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}")
        for name, files in shots.items():
            took.append(draw_page.teach(page, name, files))
    return took


def opened(rounds: int = 9) -> dict[str, Any]:
    """Seconds until the page can be used, by a browser that has never seen it, and until a class is known."""
    with tempfile.TemporaryDirectory() as place, server(SERVICE, Path(place) / "data") as (port, _):
        with chromium() as (browser, draw_page):
            times = []
            for _ in range(rounds):
                context = browser.new_context()
                page = context.new_page()
                page.goto(f"http://127.0.0.1:{port}", wait_until="commit")
                page.get_by_role("button", name="Choose pictures").wait_for()
                times.append(page.evaluate("performance.now()") / 1000)
                context.close()
            kinds = ("cup", "star", "fish", "house")
            things = {kind: draw_page.painted(Path(place) / kind, kind, 5) for kind in kinds}
        taught = on_the_page(port, things)
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{port}/page.js", headers={"Accept-Encoding": "gzip"})
        ) as answer:
            size = len(answer.read())
    return {
        "page can be used after, s": {
            "first": times[0],
            "median": statistics.median(times),
            "most": max(times),
        },
        "five pictures are known after, s": {"first": taught[0], "median": statistics.median(taught)},
        "script compressed, bytes": size,
    }


def same(data: Path, seed: int = 0, *, page: bool = False) -> dict[str, Any]:
    """Five novel classes by five pictures each, 75 novel and 75 base queries: the library's answers?"""
    from wdae.classifier.inputs import read_examples
    from wdae.classifier.predictions import predictions

    draw = random.Random(seed)
    lists: dict[str, dict[str, list[str]]] = {}
    for split in ("train", "test"):
        lists[split] = {}
        with (data / f"{split}.csv").open() as file:
            for row in csv.DictReader(file):
                lists[split].setdefault(row["label"], []).append(row["filename"])
    with tempfile.TemporaryDirectory() as place:
        root, shots = Path(place), {}
        queries: list[tuple[str, Path]] = []
        for name in sorted(draw.sample(sorted(lists["test"]), 5)):
            some = draw.sample(lists["test"][name], 20)
            (root / "shots" / name).mkdir(parents=True)
            for file_name in some[:5]:
                (root / "shots" / name / file_name).write_bytes((data / "images" / file_name).read_bytes())
            shots[name] = [root / "shots" / name / file_name for file_name in sorted(some[:5])]
            queries += [(name, data / "images" / file_name) for file_name in some[5:]]
        ids = json.loads((Path(wdae.__file__).parent / "assets/resnet12/model.json").read_text())["class_ids"]
        names = wdae.embedded_model().base.names
        for _ in range(75):
            c = draw.randrange(len(ids))
            queries.append((names[c], data / "images" / draw.choice(lists["train"][ids[c]])))
        model = wdae.embedded_model()
        model.add(read_examples(model, [root / "shots"], None).features)
        assert model.backbone is not None
        theirs = predictions(model, model.backbone.features([file for _, file in queries]), top=3)
        with server(SERVICE, root / "data") as (port, _), wdae.Client(f"http://127.0.0.1:{port}") as client:
            own = client.models()[0].id
            on_the_page(port, shots) if page else client.teach(own, shots)
            assert {one.name: one.examples for one in client.model(own).added} == dict.fromkeys(shots, 5)
            ours = list(client.predict_many(own, [file for _, file in queries], top=3))
    answers = [(one.prediction, item) for one, item in zip(ours, theirs, strict=True)]
    worst = max(
        abs(p.probability - q)
        for said, item in answers
        if said is not None
        for p, q in zip(said.probabilities, item.probabilities, strict=True)
    )
    equal = [
        said is not None
        and [p.class_ for p in said.probabilities] == list(item.classes)
        and said.unknown == item.unknown
        for said, item in answers
    ]
    right = [
        [said is not None and said.probabilities[0].class_ == label, item.classes[0] == label]
        for (said, item), (label, _) in zip(answers, queries, strict=True)
    ]
    accuracies = np.array(right).mean(0).round(4).tolist()
    return {
        "queries": len(queries),
        "answers equal": sum(equal),
        "largest difference of a probability": worst,
        "5-shot all accuracy, service and library": accuracies,
    }


async def through_restarts(port: int, path: str, stop: asyncio.Event) -> tuple[int, int]:
    """Eight clients that ask until they are stopped: requests answered, and failed."""
    sent, done, failed = request(path, picture(0)), 0, 0

    async def client() -> None:
        nonlocal done, failed
        while not stop.is_set():
            try:
                mine = await Connection.open(port)
                await mine.ask(sent)
                done += 1
                mine.writer.close()
            except (OSError, RuntimeError, asyncio.IncompleteReadError):
                failed += 1

    await asyncio.gather(*(client() for _ in range(8)))
    return done, failed


def restart(rounds: int) -> dict[str, Any]:
    """Two servers on one database behind nginx, restarted in turn under load: how many requests fail?"""
    import threading
    from contextlib import ExitStack

    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        data, ports = Path(place) / "data", [free_port(), free_port()]
        running = [stack.enter_context(ExitStack()) for _ in ports]
        for one, port in zip(running, ports, strict=True):
            one.enter_context(server(SERVICE, data, port=port))
        proxy = int(stack.enter_context(behind_nginx(Path(place) / "nginx", ports)).rsplit(":", 1)[1])
        stop, loop, found = asyncio.Event(), asyncio.new_event_loop(), list[tuple[int, int]]()
        asking = through_restarts(proxy, model_path(proxy), stop)
        thread = threading.Thread(target=lambda: found.append(loop.run_until_complete(asking)))
        thread.start()
        for turn in range(2 * rounds):
            time.sleep(2)
            running[turn % 2].close()  # SIGTERM: what it has taken is answered first
            running[turn % 2].enter_context(server(SERVICE, data, port=ports[turn % 2]))
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
    return {"restarts": 2 * rounds, "answered": found[0][0], "failed": found[0][1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    what = ["load", "half", "start", "teach", "large", "memory", "restart", "same", "page", "open"]
    parser.add_argument("what", choices=what)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    record = {
        "load": lambda: load(given.rounds, given.seconds),
        "half": lambda: half(given.rounds, given.seconds),
        "start": start,
        "teach": teach,
        "large": large,
        "memory": lambda: memory(given.count),
        "restart": lambda: restart(given.rounds),
        "same": lambda: same(given.data),
        "page": lambda: same(given.data, page=True),
        "open": opened,
    }[given.what]()
    record["load of the machine"] = os.getloadavg()
    print(json.dumps(record, indent=2, ensure_ascii=False))
    keep(f"serve-{given.what}", record)


if __name__ == "__main__":
    main()
