"""nginx before several servers of this machine."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postgres_server import free_port

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
      proxy_pass http://wdae;
      proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Host $host:$server_port;
      proxy_next_upstream error timeout http_502 http_503 non_idempotent;
      proxy_connect_timeout 2s; proxy_read_timeout 120s;
    }}
  }}
}}
"""


@contextmanager
def behind_nginx(folder: Path, ports: list[int]) -> Iterator[str]:
    """The address of a proxy before servers of this machine at some ports."""
    folder.mkdir()
    port = free_port()
    servers = " ".join(f"server 127.0.0.1:{one} max_fails=0;" for one in ports)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, servers=servers))
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    process = subprocess.Popen([binary, "-e", f"{folder}/start.log", "-c", f"{folder}/nginx.conf"])
    try:
        time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
