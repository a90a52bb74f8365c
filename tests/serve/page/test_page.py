"""What people do on the page, in a real Chromium, against a real service."""

from __future__ import annotations

import io
import json
import re
import time
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serve_help import running

import wdae
from wdae.serve.access import Keys
from wdae.serve.database.connection import Database
from wdae.serve.run import prepare
from wdae.serve.settings import Settings

VIEWS = ("teach", "try", "know", "cost", "history", "take")
Things = dict[str, list[Path]]


def predicted(shown: Any, file: Path) -> str:
    """What the service itself says of a file."""
    edge = "edge-of-a-part"
    head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'
    body = head.encode() + file.read_bytes() + f"\r\n--{edge}--\r\n".encode()
    request = urllib.request.Request(
        f"{shown.address}/api/v1/models/{shown.model}/predictions",
        body,
        {"Content-Type": f"multipart/form-data; boundary={edge}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        said = json.load(answer)
    return "None of these" if said["unknown"] else str(said["prediction"])


def test_three_classes_taught_tried_moved_and_taken_back(show: Callable[..., Any], things: Things) -> None:
    shown = show()
    page = shown.open()
    for name in ("cup", "star", "fish"):
        shown.teach(name, things[name][:4])
    assert shown.counts() == {"cup": 4, "star": 4, "fish": 4}

    shown.go("try")
    page.set_input_files("main input[type=file]", things["star"][5])
    answer = page.locator("section[aria-label=Answer]")
    answer.locator("h2").wait_for()
    assert answer.locator("h2").inner_text() == predicted(shown, things["star"][5])
    assert answer.locator("ol li").count() == 5
    assert answer.locator("ul img").count() >= 1  # the nearest examples
    page.select_option("select", "added")
    shown.until(
        lambda: page.evaluate("document.querySelectorAll('section[aria-label=Answer] ol li').length <= 3")
    )
    assert answer.locator("ol li").first.inner_text().startswith("star")

    shown.go("teach")
    pictures = page.locator('[role=listbox][aria-label="Pictures of cup"] [role=option]')
    pictures.nth(0).click()
    pictures.nth(2).click()
    page.keyboard.press("2")
    shown.until(lambda: shown.counts() == {"cup": 2, "star": 6, "fish": 4})
    page.locator("text=2 pictures moved to star.").first.wait_for()
    page.get_by_role("region", name="Messages").get_by_role("button", name="Undo").click()
    shown.until(lambda: shown.counts() == {"cup": 4, "star": 4, "fish": 4})

    pictures.nth(1).click()
    page.get_by_role("toolbar").get_by_role("button", name="Take out").click()
    shown.until(lambda: shown.counts()["cup"] == 3)


def test_a_folder_names_its_pictures(show: Callable[..., Any], things: Things) -> None:
    shown = show()
    page = shown.open()
    page.set_input_files("input[webkitdirectory]", things["house"][0].parent)
    shown.until(lambda: shown.counts() == {"house": 6})
    page.get_by_role("heading", name="house").wait_for()


def test_a_bad_picture_is_refused_by_itself(show: Callable[..., Any], things: Things, tmp_path: Path) -> None:
    shown = show()
    page = shown.open()
    bad = tmp_path / "notes.jpg"
    bad.write_text("these are no pixels")
    shown.teach("cup", [things["cup"][0], bad, things["cup"][1]])
    assert shown.counts() == {"cup": 2}
    assert "notes.jpg" in page.locator("section[aria-label*='could not be used']").inner_text()


def test_rename_merge_and_delete_for_good(show: Callable[..., Any], things: Things) -> None:
    shown = show()
    page = shown.open()
    shown.teach("cup", things["cup"][:2])
    shown.teach("mug", things["cup"][2:4])
    page.get_by_role("button", name="More about mug").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.keyboard.type("beaker")
    page.keyboard.press("Enter")
    shown.until(lambda: shown.counts() == {"cup": 2, "beaker": 2})
    page.get_by_role("button", name="More about beaker").click()
    page.get_by_role("menuitem", name="Same as").click()
    page.get_by_role("dialog").get_by_role("button", name="cup").click()
    shown.until(lambda: shown.counts() == {"cup": 4})
    page.get_by_role("button", name="More about cup").click()
    page.get_by_role("menuitem", name="Delete for good").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete for good").click()
    shown.until(lambda: shown.counts() == {})


def test_camera(show: Callable[..., Any]) -> None:
    shown = show()
    page = shown.open()
    page.get_by_role("button", name="Camera").click()
    hold = page.get_by_role("button", name="Hold to take pictures")
    shown.until(lambda: page.evaluate("document.querySelector('video').videoWidth > 0"))
    assert hold.get_attribute("aria-disabled") == "true"  # it has no name yet
    page.get_by_role("dialog").get_by_role("combobox").fill("green thing")
    hold.hover()
    page.mouse.down()
    shown.until(lambda: re.search("[3-9] taken", page.locator(".hold").inner_text()) is not None)
    page.mouse.up()
    shown.until(lambda: shown.counts().get("green thing", 0) >= 2)
    page.keyboard.press("Escape")
    shown.go("try")
    page.get_by_role("button", name="Use the camera").click()
    page.locator("section[aria-label=Answer] ol li").first.wait_for()
    page.get_by_role("button", name="Stop the camera").click()


def test_what_it_knows_what_it_cost_and_history(show: Callable[..., Any], things: Things) -> None:
    shown = show()
    page = shown.open()
    shown.teach("cup", things["cup"][:4])
    shown.teach("star", [*things["star"][:4], things["fish"][0]])
    shown.go("know")
    page.locator("svg[role=img] circle").nth(65).wait_for(state="attached")  # 64 base classes and the two
    cards = page.locator("section[aria-label='Class by class'] li.card")
    assert {"cup", "star"} <= {name.strip() for name in cards.locator("h2").all_inner_texts()}
    page.get_by_label("Find on the map").fill("star")
    page.locator("circle.found").wait_for(state="attached")
    page.set_input_files("main input[type=file] >> nth=0", [things["house"][0], things["cup"][5]])
    page.get_by_label("Name of picture 1").fill("house")
    page.get_by_role("button", name="Teach", exact=True).first.click()
    shown.until(lambda: shown.counts().get("house") == 1)

    shown.go("cost")
    figures = page.locator(".figure")
    figures.nth(1).wait_for()
    before, now = (float(text.rstrip("%")) for text in figures.all_inner_texts())
    assert 0 < now <= before + 1 and before <= 100

    shown.go("history")
    lines = page.locator("main ol li")
    lines.nth(2).wait_for()
    shown.until(lambda: "now" in lines.nth(0).inner_text())
    page.get_by_role("button", name="Go back to here, change 1").click()
    shown.until(lambda: list(shown.counts()) == ["cup"])
    page.get_by_role("button", name="Go back to here, change 3").click()  # going back has lost nothing
    shown.until(lambda: len(shown.counts()) == 3)


def test_export_and_back_again(show: Callable[..., Any], things: Things, tmp_path: Path) -> None:
    shown = show()
    page = shown.open()
    shown.teach("cup", things["cup"][:4])
    shown.go("take")
    with page.expect_download() as started:
        page.get_by_role("link", name="Download Model folder").click()
    file = tmp_path / "model.zip"
    started.value.save_as(file)
    with zipfile.ZipFile(file) as packed:
        packed.extractall(tmp_path / "out")
    folder = next((tmp_path / "out").rglob("*.json")).parent
    assert wdae.load(folder).added == ("cup",)

    with page.expect_response(re.compile("models/import")):
        page.set_input_files("main input[type=file]", file)
    page.get_by_role("region", name="Messages").get_by_text("is here").wait_for()
    other = page.evaluate("localStorage.getItem('wdae-model')")
    assert other != shown.model
    shown.go("teach")
    page.get_by_role("heading", name="cup").wait_for()
    assert page.locator("main [role=group]").count() >= 1

    shown.go("take")
    page.get_by_role("tab", name="curl").click()
    code = page.get_by_role("tabpanel").inner_text()
    assert f"{shown.address}/api/v1/models/{other}/predictions" in code


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_and_screen_reader(show: Callable[..., Any], things: Things, axe: str, scheme: str) -> None:
    """390 px wide, nothing is cut off, and axe finds nothing serious in any view."""
    phone = scheme == "dark"  # each scheme once, each width once
    size = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True} if phone else {}
    shown = show(color_scheme=scheme, bypass_csp=True, **size)  # axe comes in as a script of the test
    page = shown.open()
    shown.teach("a rather long name of a class that has to find its place", things["cup"][:3])
    shown.teach("star", things["star"][:3])
    page.evaluate(axe)
    for view in VIEWS:
        shown.go(view)
        if view == "try":
            page.set_input_files("main input[type=file]", things["cup"][4])
            page.locator("section[aria-label=Answer] ol li").first.wait_for()
        elif view == "teach":
            page.locator("[role=option]").first.click()
        page.wait_for_timeout(400)
        found = page.evaluate("axe.run({resultTypes: ['violations']})")
        serious = [
            (one["id"], [node["target"] for node in one["nodes"]])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], view
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


def tab_to(page: Any, selector: str, most: int = 60) -> None:
    """Press Tab until something has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("s => document.activeElement?.matches(s)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")


def test_keyboard_alone(show: Callable[..., Any], things: Things) -> None:
    shown = show()
    page = shown.open()
    asked: list[Any] = []
    page.on("filechooser", lambda chooser: asked.append(chooser))
    for name in ("cup", "star"):
        tab_to(page, ".zone .button.main")
        page.keyboard.press("Enter")
        shown.until(lambda: bool(asked))
        asked.pop().set_files(things[name][:3])
        # The name is asked for at once.
        shown.until(lambda: page.evaluate("document.activeElement?.matches('form input')"))
        page.keyboard.type(name)
        page.keyboard.press("Enter")
        shown.until(lambda name=name: shown.counts().get(name) == 3)
        page.get_by_role("listbox", name=f"Pictures of {name}").wait_for()
    tab_to(page, "[aria-label='Pictures of cup'] [role=option]")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    page.keyboard.press("2")
    shown.until(lambda: shown.counts() == {"cup": 2, "star": 4})
    page.keyboard.press("Control+z")
    shown.until(lambda: shown.counts() == {"cup": 3, "star": 3})
    tab_to(page, "[aria-label='Pictures of star'] [role=option]")
    page.keyboard.press("Delete")
    shown.until(lambda: shown.counts() == {"cup": 3, "star": 2})
    page.evaluate("document.activeElement?.blur(); scrollTo(0, 0)")
    tab_to(page, "nav a[href='#/history']")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="History").wait_for()
    assert page.evaluate("document.activeElement.tagName") == "H1"  # a screen reader hears where it is


def test_hostile_names(show: Callable[..., Any], things: Things, tmp_path: Path) -> None:
    """Names are text, wherever they are shown: no element comes of them, and none turns the line around."""
    shown = show()
    page = shown.open()
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    name = "<img src=x onerror=alert(1)>{\"}';--"
    bad = tmp_path / "<svg onload=alert(2)>\u202egpj.exe.jpg"
    bad.write_text("no picture")
    shown.teach(name, [*things["cup"][:2], bad])
    page.get_by_role("heading", name=name).wait_for()
    for view in VIEWS:
        shown.go(view)
        page.wait_for_timeout(150)
        assert page.locator("img[src='x'], main svg[onload]").count() == 0
    shown.go("teach")
    shown.teach("a\u202eb", things["star"][:1])  # a right-to-left override
    assert "\u202e" not in page.get_by_role("region", name="Messages").inner_text()
    assert page.locator("h3 bdi", has_text="a\u202eb").count() == 1  # bdi: it turns nothing but itself
    before = shown.counts()
    for refused in ("two\x00zeros", "up/down"):
        shown.drop([things["star"][1]])
        page.locator("form input[list]").first.fill(refused)
        page.keyboard.press("Enter")
        page.locator("section[aria-label*='could not be used']", has_text="class name").wait_for()
        page.get_by_role("button", name="Discard").click()  # the picture has waited for a better name
    assert shown.counts() == before


def test_nothing_from_elsewhere_quick_and_small(show: Callable[..., Any]) -> None:
    shown = show()
    asked: list[str] = []
    shown.page.on("request", lambda request: asked.append(request.url))
    page = shown.open()
    page.get_by_role("button", name="Choose pictures").wait_for()
    assert asked and all(url.startswith((shown.address, "blob:")) for url in asked)
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time: no other load counts in
    page.reload()
    page.get_by_role("button", name="Choose pictures").wait_for()
    metrics = {one["name"]: one["value"] for one in client.send("Performance.getMetrics")["metrics"]}
    assert 0 < metrics["TaskDuration"] < 1.0  # seconds of work until it can be used
    with urllib.request.urlopen(
        urllib.request.Request(f"{shown.address}/page.js", headers={"Accept-Encoding": "gzip"}), timeout=10
    ) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert len(answer.read()) <= 250_000
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]


def test_changes_of_others_appear(show: Callable[..., Any], things: Things) -> None:
    first = show()
    first.open()
    second = show()
    second.model = first.model
    second.page.add_init_script(f"localStorage.setItem('wdae-model', '{first.model}')")
    page = second.open()
    first.teach("cup", things["cup"][:2])
    start = time.monotonic()
    page.get_by_role("heading", name="cup").wait_for(timeout=10_000)
    assert time.monotonic() - start < 10


def test_a_zip_is_taught(show: Callable[..., Any], things: Things, tmp_path: Path) -> None:
    shown = show()
    page = shown.open()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as out:
        for name in ("cup", "fish"):
            for file in things[name][:3]:
                out.write(file, f"{name}/{file.name}")
    file = tmp_path / "things.zip"
    file.write_bytes(packed.getvalue())
    page.set_input_files("main input[type=file] >> nth=0", file)
    shown.until(lambda: shown.counts() == {"cup": 3, "fish": 3})


def test_a_key_is_asked_for(browser: Any, things: Things, tmp_path: Path) -> None:
    """Where others can reach the service: a wrong key, one that may look, one that may teach."""
    settings = Settings(data=tmp_path / "data", host="0.0.0.0")
    prepare(settings)
    database = Database(settings.database_url)
    keys = {role: Keys(database).create(role, role)[1] for role in ("read", "teach")}
    database.close()
    with running(settings) as address:
        for role, key in keys.items():
            context = browser.new_context()
            page = context.new_page()
            page.goto(address)
            page.get_by_label("Key").fill("wdae_wrong")
            page.keyboard.press("Enter")
            page.get_by_role("alert").wait_for()
            page.get_by_label("Key").fill(key)
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="Teach it something new").wait_for()
            assert page.get_by_role("button", name="Choose pictures").count() == (role == "teach")
            if role == "teach":  # the session's cookie and its token let changes pass
                page.set_input_files("main input[type=file] >> nth=0", things["cup"][:2])
                page.wait_for_selector("form >> text=What are these?")
                page.keyboard.type("cup")
                page.keyboard.press("Enter")
                page.get_by_role("listbox", name="Pictures of cup").wait_for()
            context.close()
