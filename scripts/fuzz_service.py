"""Requests that nobody thought of, made from the API's own description: none may end in our error.

    python scripts/fuzz_service.py --cases 20000 [--seed 1] [--postgres]

Every operation gets its share of the cases, half of them as the description allows (positive), half not
(negative); those that take long, such as exports, get fewer. Ids of models, classes and pictures that exist
are put in most of the time. A failure is an answer of 500 or above, an exception, an error that is no problem
document, or an answer that is not as described.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance
from starlette import testclient

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/helpers"))
from postgres_server import PostgresServer
from stranger_pictures import jpeg

from wdae.serve.app import create_app
from wdae.serve.database.connection import Database
from wdae.serve.limits import Limits
from wdae.serve.settings import Settings

SLOW = ("/export.onnx", "/download", "/insight", "/map", "/cost", "/models", "/import", "/events", "/metrics")
API = "http://localhost/api/v1"
_NOT_SENT = (UnicodeError, TypeError, AttributeError, testclient.httpx.InvalidURL)  # by no client at all


class World:
    """A service with something in it, made anew where a case has deleted it."""

    def __init__(self, client: TestClient, chance: random.Random) -> None:
        self.client, self.chance, self.made = client, chance, 0
        self.ids: dict[str, str] = {}

    def refresh(self) -> None:
        """See to it that there is a model with an example."""
        if (
            self.ids
            and self.client.get(f"{API}/models/{self.ids['m']}/pictures/{self.ids['p']}").status_code == 200
        ):
            return
        self.made += 1
        model = self.client.post(f"{API}/models", json={"name": f"fuzzed {self.made}"}).json()["id"]
        files = [("files", ("a.jpg", jpeg(seed=i))) for i in range(2)]
        taught = self.client.post(f"{API}/models/{model}/examples", files=files, data={"class": "okapi"})
        one = taught.json()["added"][0]
        self.ids = {"m": model, "c": one["class_id"], "p": one["picture"]}

    def fill(self, case: schemathesis.Case) -> None:
        """Put ids in that exist, most of the time."""
        for name, value in self.ids.items():
            if name in (case.path_parameters or {}) and self.chance.random() < 0.8:
                case.path_parameters[name] = value


def _as_text(file: str | None, content: Any, *rest: Any) -> tuple[Any, ...]:
    return file, str(content) if isinstance(content, int | float) else content, *rest


def fuzz(
    client: TestClient, cases: int, number: int, *, quick: bool = False
) -> tuple[Counter[str], list[str]]:
    """Counts of answers, and what went wrong; ``quick``: without exports, which take seconds each."""
    world = World(client, random.Random(number))
    schema = schemathesis.openapi.from_dict(client.get(f"{API}/openapi.json").json())
    operations = [result.ok() for result in schema.get_all_operations()]
    operations = [one for one in operations if not (quick and one.path.endswith(SLOW[0]))]
    answers: Counter[str] = Counter()
    faults: list[str] = []

    def one(case: schemathesis.Case) -> None:
        world.fill(case)
        kwargs: dict[str, Any] = case.as_transport_kwargs(base_url="http://localhost")
        kwargs.pop("cookies", None)
        kwargs.pop("timeout", None)
        kwargs.pop("verify", None)
        if isinstance(kwargs.get("data"), bytes | str):
            kwargs["content"] = kwargs.pop("data")
        if isinstance(kwargs.get("files"), list):  # requests takes numbers as contents; this client does not
            kwargs["files"] = [(name, _as_text(*part)) for name, part in kwargs["files"]]
        shown = f"{case.method} {case.operation.path} {str(kwargs)[:600]}"
        try:
            request = client.build_request(
                **{key: value for key, value in kwargs.items() if value is not None}
            )
            request.read()
        except _NOT_SENT as error:
            answers[f"not sent: {type(error).__name__}"] += 1
            return
        try:
            answer = client.send(request)
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error} of {shown}")
            return
        answers[str(answer.status_code)] += 1
        if answer.status_code >= 500:
            faults.append(f"{answer.status_code} of {shown}: {answer.text[:300]}")
        elif answer.status_code >= 400 and answer.headers.get("content-type") != "application/problem+json":
            faults.append(f"{answer.status_code} without a problem document of {shown}")
        elif answer.status_code < 300:
            try:
                case.validate_response(answer, checks=[response_schema_conformance])
            except Exception as error:
                faults.append(f"not as described, {shown}: {str(error)[:600]}")

    kinds = [(operation, mode) for operation in operations for mode in GenerationMode]
    for left, (operation, mode) in zip(range(len(kinds), 0, -1), kinds, strict=True):
        world.refresh()
        client.app.state.service.access._limiter.storage.reset()
        share = max(1, (cases - sum(n for what, n in answers.items() if what.isdigit())) // left + 1)
        if operation.path.endswith(SLOW):
            share = 1 if operation.path.endswith(SLOW[0]) else min(share, max(2, cases // 1000))
        run = given(case=operation.as_strategy(generation_mode=mode))(lambda case: one(case))
        run = settings(
            max_examples=share,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(seed(number)(run))
        try:
            run()
        except Exception as error:  # an operation that cannot be negated has no such cases
            answers[f"no {mode.value} cases: {type(error).__name__}"] += 1
    return answers, faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    asked = parser.parse_args()
    start = time.monotonic()
    server = PostgresServer() if asked.postgres else None
    with tempfile.TemporaryDirectory(prefix="wdae-fuzz-") as folder:
        made = Settings(
            data=Path(folder), database=server.create("wdae") if server else None, limits=Limits(decoders=1)
        )
        database = Database(made.database_url)
        database.migrate()
        database.close()
        with TestClient(
            create_app(made), base_url="http://localhost", raise_server_exceptions=False
        ) as client:
            answers, faults = fuzz(client, asked.cases, asked.seed)
    if server:
        server.stop()
    sent = sum(count for what, count in answers.items() if what.isdigit())
    print(
        {"seconds": round(time.monotonic() - start), "cases": sent, "answers": dict(sorted(answers.items()))}
    )
    for fault in faults[:60]:
        print(fault[:400])
    print(f"{len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
