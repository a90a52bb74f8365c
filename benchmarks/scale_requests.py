"""Several servers on one PostgreSQL behind nginx: requests a second, p99, and when a change is seen by all.

python benchmarks/scale_requests.py [--workers 1 2 4] [--seconds 15] [--clients 16]

Servers, database and proxy are processes on ports of this machine, which sends the requests too: with as many
servers as cores there is nothing left to gain. A class is taught through the proxy, again and again; every
server is then asked, past the proxy, until its answer has the class. Writes scale/scale-requests.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from common import RESULTS, keep
from serve import closed_loop, model_path, percentile, picture, server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from nginx_server import behind_nginx  # type: ignore[import-not-found]
from postgres_server import PostgresServer  # type: ignore[import-not-found]

SERVICE = """
import sys
from pathlib import Path
from wdae.serve.run import serve
from wdae.serve.settings import Settings
place = {"data": Path(sys.argv[2]), "database": sys.argv[3]}
serve(Settings(**place, port=int(sys.argv[1]), limits={"requests": 10**6}))
"""


def seen_by_all(proxy: str, ports: list[int], turns: int) -> list[float]:
    """Seconds from the answer to a change until every server shows it; for each of some changes."""
    found = []
    with httpx.Client(base_url=f"{proxy}/api/v1", timeout=60) as client:
        model = client.get("/models").json()["items"][0]["id"]
        for turn in range(turns):
            name = f"class of turn {turn}"
            files = [("files", (f"{i}.jpg", picture(1000 + 5 * turn + i))) for i in range(3)]
            told = client.post(f"/models/{model}/examples", files=files, data={"class": name})
            told.raise_for_status()
            began = time.perf_counter()
            for port in ports:
                while True:
                    answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/models/{model}", timeout=60).json()
                    if name in [one["name"] for one in answer["added"]]:
                        break
            found.append(time.perf_counter() - began)
    return found


def measure(workers: int, clients: int, seconds: float, database: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        ports = []
        for _ in range(workers):
            ports.append(stack.enter_context(server(SERVICE, Path(place) / "data", database))[0])
        proxy = stack.enter_context(behind_nginx(Path(place) / "nginx", ports))
        at = int(proxy.rsplit(":", 1)[1])
        path = model_path(at)
        for port in ports:
            asyncio.run(closed_loop(port, path, 4, 2.0))
        rate, times = asyncio.run(closed_loop(at, path, clients, seconds))
        seen = seen_by_all(proxy, ports, 10)
    return {
        "workers": workers,
        "clients": clients,
        "requests": len(times),
        "requests_per_s": rate,
        "p50_ms": percentile(times, 0.5),
        "p99_ms": percentile(times, 0.99),
        "seen_by_all_most_s": max(seen),
        "changes": len(seen),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "scale")
    args = parser.parse_args()
    postgres = PostgresServer()
    try:
        rows = []
        for workers in args.workers:
            rows.append(measure(workers, args.clients, args.seconds, postgres.create(f"scale{workers}")))
            print(rows[-1], flush=True)
            keep("scale-requests", {"cores": os.cpu_count(), "requests": rows}, args.out)
    finally:
        postgres.stop()


if __name__ == "__main__":
    main()
