"""A typed client of the service, for programs in Python."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from wdae.errors import MissingExtraError, WdaeError
from wdae.serve import schemas

try:
    import httpx
except ImportError as error:
    raise MissingExtraError("httpx", "serve", "wdae.Client") from error

PictureLike = str | Path | bytes
"""A file, or the bytes of one."""
S = TypeVar("S", bound=BaseModel)
_API = "/api/v1"
_LONGEST_WAIT = 30.0  # seconds, whatever Retry-After says


class ClientError(WdaeError):
    """What the service did not do, in its own words.

    Attributes:
        status: of HTTP; 0 where the service could not be reached.
        problem: the problem document (RFC 9457), with its ``request_id``.
    """

    def __init__(self, message: str, status: int = 0, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status, self.problem = status, dict(problem or {})


class Client:
    """A service that ``wdae serve`` has started, here or elsewhere.

    Answers are typed objects (:mod:`wdae.serve.schemas`). Requests that the service puts off (429, 503) are
    sent again after the time that it asks for.

    Args:
        url: such as ``http://127.0.0.1:8000``.
        key: where the service needs one.
        timeout: seconds that an answer may take.
        retries: how often a request is sent again that the service has put off.

    >>> client = Client("http://127.0.0.1:8000")
    >>> client
    Client('http://127.0.0.1:8000')
    >>> client.close()

    ``client.teach(model, {"okapi": ["a.jpg", "b.jpg"]})`` and ``client.predict(model, "new.jpg").prediction``
    are the two that most programs need.
    """

    def __init__(self, url: str, key: str | None = None, *, timeout: float = 60.0, retries: int = 5) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.url, self._retries = url.rstrip("/"), retries
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def about(self) -> schemas.About:
        """The service: its version, its limits, and who we are to it."""
        return self._get("/about", schemas.About)

    def models(self) -> list[schemas.ModelItem]:
        """The models there are."""
        return self._get("/models", schemas.Models).items

    def create_model(self, name: str, starting: str = "resnet12") -> schemas.ModelOut:
        """Make a model that knows what a ready one knows."""
        return self._send("POST", "/models", schemas.ModelOut, json={"name": name, "starting": starting})

    def model(self, model: str) -> schemas.ModelOut:
        """A model by its id: its revision and the classes that it was taught."""
        return self._get(f"/models/{model}", schemas.ModelOut)

    def change_model(self, model: str, **changes: Any) -> schemas.ModelOut:
        """Change ``name`` or ``novel_share`` of a model."""
        return self._send("PATCH", f"/models/{model}", schemas.ModelOut, json=changes)

    def delete_model(self, model: str) -> None:
        """Delete a model for good, with its pictures."""
        self._request("DELETE", f"/models/{model}")

    def classes(self, model: str, kind: str | None = None, search: str = "") -> list[schemas.Class]:
        """The classes of a model; ``kind`` is added or base."""
        asked = {"search": search} | ({} if kind is None else {"kind": kind})
        return self._all(f"/models/{model}/classes", schemas.Classes, asked)

    def teach(
        self, model: str, classes: Mapping[str, Sequence[PictureLike]], *, revision: int | None = None
    ) -> schemas.Taught:
        """Teach a model: pictures of each class, which is made where there is none of that name.

        Args:
            revision: the revision that the change is meant for; at another one it is refused.
        """
        shown = [(name, one) for name, some in classes.items() for one in some]
        files = [("files", _file(one, i)) for i, (_, one) in enumerate(shown)]
        return self._send(
            "POST",
            f"/models/{model}/examples",
            schemas.Taught,
            files=files,
            data={"classes": [name for name, _ in shown]},
            headers=_if_match(revision),
        )

    def examples(self, model: str, class_id: str) -> list[schemas.Example]:
        """The examples of a class."""
        return self._all(f"/models/{model}/classes/{class_id}/examples", schemas.Examples, {})

    def move(self, model: str, pictures: Sequence[str], to: str) -> int:
        """Make examples those of another class; the new revision."""
        value = {"pictures": list(pictures), "to": to}
        return self._changed("PATCH", f"/models/{model}/examples", json=value)

    def remove(self, model: str, pictures: Sequence[str], *, forever: bool = False) -> int:
        """Take examples out, for good with ``forever``; the new revision."""
        value = {"pictures": list(pictures), "forever": forever}
        return self._changed("DELETE", f"/models/{model}/examples", json=value)

    def create_class(self, model: str, name: str) -> schemas.ChangedClass:
        """A class without examples."""
        return self._send("POST", f"/models/{model}/classes", schemas.ChangedClass, json={"name": name})

    def rename(self, model: str, class_id: str, name: str) -> int:
        """Call a class otherwise; the new revision."""
        return self._changed("PATCH", f"/models/{model}/classes/{class_id}", json={"name": name})

    def merge(self, model: str, classes: Sequence[str], into: str) -> int:
        """Give the examples of classes (ids) to another one; the new revision."""
        value = {"from": list(classes), "into": into}
        return self._changed("POST", f"/models/{model}/classes/merge", json=value)

    def remove_class(self, model: str, class_id: str, *, forever: bool = False) -> int:
        """Take a class out, for good with ``forever``; the new revision."""
        params = {"forever": str(forever).lower()}
        return self._changed("DELETE", f"/models/{model}/classes/{class_id}", params=params)

    def predict(self, model: str, picture: PictureLike, **question: Any) -> schemas.PredictionOut:
        """What is on a picture; ``top``, ``only``, ``expect`` and ``nearest`` say how it is asked."""
        path = f"/models/{model}/predictions"
        return self._send(
            "POST", path, schemas.PredictionOut, files={"file": _file(picture)}, params=question
        )

    def predict_many(
        self, model: str, pictures: Iterable[PictureLike], **question: Any
    ) -> Iterator[schemas.FilePrediction]:
        """What is on each of any number of pictures, as the answers come, in their order."""

        def lines() -> Iterator[bytes]:
            for i, picture in enumerate(pictures):
                name, data = _file(picture, i)
                yield json.dumps({"file": name, "picture": base64.b64encode(data).decode()}).encode() + b"\n"

        path, headers = f"{_API}/models/{model}/predictions/stream", {"Content-Type": "application/x-ndjson"}
        try:
            with self._http.stream("POST", path, content=lines(), params=question, headers=headers) as reply:
                if reply.is_error:
                    reply.read()
                    raise _error(reply)
                for line in reply.iter_lines():
                    yield schemas.FilePrediction.model_validate_json(line)
        except httpx.TransportError as error:
            raise ClientError(f"{self.url} cannot be reached: {error}") from error

    def explain(self, model: str, picture: PictureLike) -> schemas.ExplanationOut:
        """Why a picture gets its answer."""
        path = f"/models/{model}/explanations"
        return self._send("POST", path, schemas.ExplanationOut, files={"file": _file(picture)})

    def next(self, model: str, pictures: Sequence[PictureLike]) -> schemas.Next:
        """Which of unlabelled pictures to label next."""
        files = [("files", _file(one, i)) for i, one in enumerate(pictures)]
        return self._send("POST", f"/models/{model}/next", schemas.Next, files=files)

    def insight(self, model: str) -> schemas.Insight:
        """What each added class is confused with, and whether more pictures would help."""
        return self._get(f"/models/{model}/insight", schemas.Insight)

    def cost(self, model: str) -> schemas.Cost:
        """What the added classes cost the base classes."""
        return self._get(f"/models/{model}/cost", schemas.Cost)

    def map(self, model: str) -> list[schemas.Point]:
        """A place for each class."""
        return self._get(f"/models/{model}/map", schemas.Map).points

    def history(self, model: str) -> schemas.History:
        """Every change of a model, the latest first."""
        return self._get(f"/models/{model}/history", schemas.History)

    def undo(self, model: str, to: int | None = None) -> int:
        """Return to the state of a revision, or one step back; the new revision."""
        return self._changed("POST", f"/models/{model}/undo", json={"to": to})

    def redo(self, model: str) -> int:
        """Make the change again that was undone last; the new revision."""
        return self._changed("POST", f"/models/{model}/redo")

    def download(self, model: str, file: str | Path) -> Path:
        """Keep a model's folder as a zip; unpacked it opens with :func:`wdae.load`."""
        return self._kept(f"/models/{model}/download", file)

    def export_onnx(self, model: str, file: str | Path) -> Path:
        """Keep a model as an ONNX file."""
        return self._kept(f"/models/{model}/export.onnx", file)

    def import_model(self, file: str | Path, name: str | None = None) -> schemas.ModelOut:
        """Make a model of the zip of a model's folder."""
        data = {} if name is None else {"name": name}
        files = {"file": _file(file)}
        return self._send("POST", "/models/import", schemas.ModelOut, files=files, data=data)

    def start_job(self, model: str, kind: str, file: str | Path, **options: Any) -> schemas.JobOut:
        """Start a job on a zip: ``import_zip`` or ``predict_many``."""
        files = {"file": _file(file)}
        return self._send(
            "POST", f"/models/{model}/jobs", schemas.JobOut, files=files, data={"kind": kind, **options}
        )

    def job(self, job: str) -> schemas.JobOut:
        """A job: how far it is, and what it gave."""
        return self._get(f"/jobs/{job}", schemas.JobOut)

    def wait(self, job: str, every: float = 0.5) -> schemas.JobOut:
        """A job, once it has ended."""
        while (found := self.job(job)).state in ("queued", "running"):
            time.sleep(every)
        return found

    def _get(self, path: str, kind: type[S], **options: Any) -> S:
        return self._send("GET", path, kind, **options)

    def _all(
        self, path: str, kind: type[schemas.Classes] | type[schemas.Examples], asked: dict[str, Any]
    ) -> list[Any]:
        """The items of all pages."""
        items: list[Any] = []
        while True:
            page = self._get(path, kind, params=asked | {"offset": len(items), "limit": 1000})
            items += page.items
            if not page.items or len(items) >= page.total:
                return items

    def _send(self, method: str, path: str, kind: type[S], **options: Any) -> S:
        return kind.model_validate_json(self._request(method, path, **options).content)

    def _changed(self, method: str, path: str, **options: Any) -> int:
        return self._send(method, path, schemas.Changed, **options).revision

    def _kept(self, path: str, file: str | Path) -> Path:
        Path(file).write_bytes(self._request("GET", path).content)
        return Path(file)

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        for left in range(self._retries, -1, -1):
            try:
                reply = self._http.request(method, _API + path, **options)
            except httpx.TransportError as error:
                raise ClientError(f"{self.url} cannot be reached: {error or type(error).__name__}") from error
            if reply.status_code not in (429, 503) or not left:
                break
            asked = reply.headers.get("Retry-After", "1")
            time.sleep(min(_LONGEST_WAIT, float(asked) if asked.isdigit() else 1.0))
        if reply.is_error:
            raise _error(reply)
        return reply


def _error(reply: httpx.Response) -> ClientError:
    try:
        problem = reply.json()
        return ClientError(str(problem["detail"]), reply.status_code, problem)
    except (ValueError, KeyError, TypeError):
        return ClientError(f"the service answers {reply.status_code}: {reply.text[:200]}", reply.status_code)


def _file(picture: PictureLike, number: int = 0) -> tuple[str, bytes]:
    if isinstance(picture, bytes):
        return f"picture-{number}", picture
    path = Path(picture)
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise ClientError(f"{path} cannot be read: {error.strerror or error}") from error


def _if_match(revision: int | None) -> dict[str, str]:
    return {} if revision is None else {"If-Match": f'"{revision}"'}
