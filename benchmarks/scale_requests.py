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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from common import RESULTS, keep
from serve import closed_loop, model_path, percentile, picture, server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from postgres_server import PostgresServer  # type: ignore[import-not-found]

SERVICE = """
import sys
from pathlib import Path
from wdae.serve.run import serve
from wdae.serve.settings import Settings
place = {"data": Path(sys.argv[2]), "database": sys.argv[3]}
serve(Settings(**place, port=int(sys.argv[1]), limits={"requests": 10**6}))
"""
NGINX = """
pid {folder}/nginx.pid; error_log {folder}/error.log; daemon off; worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream wdae {{ {servers} keepalive 32; }}
  server {{
    listen 127.0.0.1:{port};
    client_max_body_size 300m;
    location / {{
      proxy_pass http://wdae; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Host $host:$server_port;
    }}
  }}
}}
"""


@contextmanager
def behind_nginx(folder: Path, port: int, ports: list[int]) -> Iterator[int]:
    """The port of a proxy before servers at other ports."""
    folder.mkdir()
    servers = " ".join(f"server 127.0.0.1:{one};" for one in ports)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, servers=servers))
    process = subprocess.Popen(["/usr/sbin/nginx", "-e", f"{folder}/start", "-c", f"{folder}/nginx.conf"])
    try:
        time.sleep(1)
        yield port
    finally:
        process.terminate()
        process.wait()


def seen_by_all(proxy: int, ports: list[int], turns: int) -> list[float]:
    """Seconds from the answer to a change until every server shows it; for each of some changes."""
    found = []
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy}/api/v1", timeout=60) as client:
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
        proxy = stack.enter_context(behind_nginx(Path(place) / "nginx", 18_080 + workers, ports))
        path = model_path(proxy)
        for port in ports:
            asyncio.run(closed_loop(port, path, 4, 2.0))
        rate, times = asyncio.run(closed_loop(proxy, path, clients, seconds))
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
