"""One service on a free port and one Chromium for all tests of a process; nothing is mocked."""

from __future__ import annotations

import io
import json
import shutil
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import build_page
import pytest
from draw_page import FLAGS, INSTALL, painted
from PIL import Image
from serve_help import running

from wdae.serve.limits import Limits
from wdae.serve.settings import Settings


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a service with a data folder of its own, in a thread: this process has its imports behind it."""
    with running(Settings(data=tmp_path_factory.mktemp("service"), limits=Limits(decoders=1))) as url:
        yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium, with a camera that is none."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip(f"no chromium here: {INSTALL}")
    playwright = pytest.importorskip("playwright.sync_api", reason=INSTALL)
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()


def ask(url: str, method: str = "GET", value: object = None) -> Any:
    """JSON of the service."""
    data = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


class Shown:
    """A page that shows a model of its own, and what a person does with it."""

    def __init__(self, page: Any, address: str, model: str) -> None:
        self.page, self.address, self.model = page, address, model
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        # What the browser says of answers that are no success belongs to the test that asked for them.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def open(self, view: str = "teach") -> Any:
        self.page.goto(f"{self.address}/#/{view}")
        self.page.wait_for_selector("main h1")
        return self.page

    def go(self, view: str) -> Any:
        """By the link, as a person does."""
        link = f'nav a[href="#/{view}"]'
        self.page.locator(link).click()
        self.page.locator(f"{link}[aria-current=page]").wait_for()  # the view has changed
        return self.page

    def drop(self, files: list[Path], onto: str = '[aria-label^="Drop pictures"]') -> None:
        """Files let go over something."""
        held = self.page.evaluate_handle("() => new DataTransfer()")
        for file in files:
            self.page.evaluate(
                "([held, name, bytes]) =>"
                " held.items.add(new File([new Uint8Array(bytes)], name, {type: 'image/jpeg'}))",
                [held, file.name, list(file.read_bytes())],
            )
        for event in ("dragenter", "dragover", "drop"):
            self.page.dispatch_event(onto, event, {"dataTransfer": held})

    def drag_in(self, *paths: Path, onto: str = '[aria-label^="Drop pictures"]') -> None:
        """Files and folders of this machine, dragged in by the browser itself."""
        self.page.locator('[aria-label^="Drop pictures"]').first.wait_for()  # the model is there
        target = self.page.locator(onto).first
        while (box := target.bounding_box()) is None:  # the view is being drawn anew
            self.page.wait_for_timeout(50)
        client = self.page.context.new_cdp_session(self.page)
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        place = {"x": box["x"] + 12, "y": box["y"] + 12, "data": data}
        for step in ("dragEnter", "dragOver", "drop"):
            client.send("Input.dispatchDragEvent", {"type": step, **place})
            self.page.wait_for_timeout(100)  # a hand takes longer: what is let go too soon is not taken
        client.detach()

    def paste(self, file: Path) -> None:
        """A picture copied elsewhere, and Ctrl-V."""
        picture = io.BytesIO()
        Image.open(file).save(picture, "PNG")
        self.page.evaluate(
            "async bytes => navigator.clipboard.write([new ClipboardItem("
            "{'image/png': new Blob([new Uint8Array(bytes)], {type: 'image/png'})})])",
            list(picture.getvalue()),
        )
        self.page.keyboard.press("Control+v")

    def teach(self, name: str, files: list[Path]) -> None:
        """Drop pictures, type their name, Enter."""
        before = self.state()["revision"]
        self.drop(files)
        self.page.wait_for_selector("form >> text=What are these?")
        self.page.keyboard.type(name)
        self.page.keyboard.press("Enter")
        self.until(lambda: self.state()["revision"] > before)
        self.until(lambda: self.page.evaluate("document.querySelectorAll('[aria-busy=true]').length === 0"))

    def state(self) -> Any:
        return ask(f"{self.address}/api/v1/models/{self.model}")

    def counts(self) -> dict[str, int]:
        """How many examples each taught class has, as the service says."""
        return {one["name"]: one["examples"] for one in self.state()["added"]}

    def until(self, true: Callable[[], bool], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "that did not happen in time"
            self.page.wait_for_timeout(50)


@pytest.fixture
def show(browser: Any, address: str) -> Iterator[Callable[..., Shown]]:
    """Open a page with a new model; keywords go to the browser's context."""
    contexts, pages = [], []

    def make(**keywords: Any) -> Shown:
        model = ask(f"{address}/api/v1/models", "POST", {"name": f"tried {uuid.uuid4()}"})["id"]
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 860}, "accept_downloads": True, **keywords}
        )
        context.grant_permissions(["camera", "clipboard-read", "clipboard-write"], origin=address)
        context.add_init_script(f"localStorage['wdae-model'] ??= '{model}'")
        contexts.append(context)
        pages.append(Shown(context.new_page(), address, model))
        return pages[-1]

    yield make
    for context in contexts:
        context.close()
    assert [fault for page in pages for fault in page.faults] == []


@pytest.fixture(scope="session")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Painted pictures, by what they show."""
    folder = tmp_path_factory.mktemp("things")
    return {kind: painted(folder / kind, kind, 6) for kind in ("cup", "star", "fish", "house")}


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core, as npm installs it for the page."""
    file = build_page.PAGE / "node_modules" / "axe-core" / "axe.min.js"
    if not file.is_file():
        if shutil.which("npm") is None:
            pytest.skip("axe-core comes with Node: install Node 20 or newer (apt-get install nodejs npm)")
        try:
            build_page.install()
        except RuntimeError as error:
            pytest.skip(f"axe-core cannot be installed: {error}")
    return file.read_text()
