"""What people do on the page, in a real Chromium, against a real service."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import subprocess
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from serve_help import running

import wdae
from wdae.classifier.predictions import predictions
from wdae.nn.cosine import unit
from wdae.serve.database.connection import Database
from wdae.serve.keys import Keys
from wdae.serve.run import prepare
from wdae.serve.settings import Settings

VIEWS = ("teach", "try", "know", "cost", "history", "take")
ANSWER = "section[aria-label=Answer]"
Things = dict[str, list[Path]]


def predicted(shown: Any, file: Path) -> dict[str, Any]:
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
        said: dict[str, Any] = json.load(answer)
    return said


def pictures_of(page: Any, name: str) -> Any:
    return page.locator(f'[role=listbox][aria-label="Pictures of {name}"] [role=option]')


def test_three_classes_taught_tried_moved_and_taken_back(show: Callable[..., Any], things: Things) -> None:
    shown = show()
    asked: list[str] = []
    shown.page.on("request", lambda request: asked.append(request.url))
    page = shown.open()
    for name in ("cup", "star", "fish"):
        shown.teach(name, things[name][:4])
    assert shown.counts() == {"cup": 4, "star": 4, "fish": 4}

    # The answer on the page is the service's, and the service's is the library's on the same pictures.
    shown.go("try")
    page.set_input_files("main input[type=file]", things["star"][5])
    answer = page.locator(ANSWER)
    answer.locator("ol li").first.wait_for()
    said = predicted(shown, things["star"][5])
    assert answer.locator("h2").inner_text() == ("None of these" if said["unknown"] else said["prediction"])
    assert answer.locator("ol li").count() == 5
    assert answer.locator("ul.near img").count() == 4
    assert "listens most to" in answer.locator(".why").inner_text() or said["prediction"] != "star"
    library = wdae.embedded_model()
    library.add(library_features(library, {name: things[name][:4] for name in ("cup", "star", "fish")}))
    assert library.backbone is not None
    expected = predictions(library, library.backbone.features([things["star"][5]]), top=5)[0]
    assert said["unknown"] == expected.unknown
    assert [one["class"] for one in said["probabilities"]] == list(expected.classes)
    assert [one["probability"] for one in said["probabilities"]] == pytest.approx(
        expected.probabilities, abs=1e-5
    )
    page.select_option("select", "added")
    shown.until(lambda: page.evaluate(f"document.querySelectorAll('{ANSWER} ol li').length <= 3"))
    assert answer.locator("ol li").first.inner_text().startswith("star")
    shown.paste(things["fish"][5])
    shown.until(lambda: answer.locator("ol li").first.inner_text().startswith("fish"))

    # Several at once by the key of a class, and back by the message's own button.
    shown.go("teach")
    pictures = pictures_of(page, "cup")
    pictures.nth(0).click()
    pictures.nth(2).click()
    page.keyboard.press("2")
    shown.until(lambda: shown.counts() == {"cup": 2, "star": 6, "fish": 4})
    page.locator("text=2 pictures moved to star.").first.wait_for()
    page.get_by_role("region", name="Messages").get_by_role("button", name="Undo").click()
    shown.until(lambda: shown.counts() == {"cup": 4, "star": 4, "fish": 4})
    # By the mouse, from card to card.
    pictures.nth(3).drag_to(page.get_by_role("group", name="fish"))
    shown.until(lambda: shown.counts() == {"cup": 3, "star": 4, "fish": 5})
    pictures.nth(1).click()
    page.get_by_role("toolbar").get_by_role("button", name="Take out").click()
    shown.until(lambda: shown.counts()["cup"] == 2)

    assert asked and all(url.startswith((shown.address, "blob:")) for url in asked)  # no other host
    second = show()  # somebody else's page: changes appear by themselves
    second.page.add_init_script(f"localStorage.setItem('wdae-model', '{shown.model}')")
    second.open().get_by_role("heading", name="fish").wait_for()
    shown.teach("house", things["house"][:1])
    second.page.get_by_role("heading", name="house").wait_for(timeout=10_000)


def library_features(model: Any, classes: Things) -> Any:
    """Features of files of classes, as ``wdae add`` takes them."""
    return {name: model.backbone.features(files) for name, files in classes.items()}


def test_every_way_in(show: Callable[..., Any], things: Things, tmp_path: Path) -> None:
    """Dragged folders, chosen folders, zips, paste; a bad picture is refused by itself; labels by 1 to 9."""
    shown = show()
    page = shown.open()
    shown.drag_in(things["house"][0].parent, onto="main h1")  # anywhere on the page
    shown.until(lambda: shown.counts() == {"house": 6})
    page.get_by_role("heading", name="house").wait_for()

    packed = tmp_path / "things.zip"
    with zipfile.ZipFile(packed, "w") as out:
        for name in ("cup", "fish"):
            for file in things[name][:3]:
                out.write(file, f"{name}/{file.name}")
    page.set_input_files("main input[type=file] >> nth=0", packed)
    shown.until(lambda: shown.counts() == {"house": 6, "cup": 3, "fish": 3})

    chosen = tmp_path / "chosen"
    for name in ("cup", "star"):
        (chosen / name).mkdir(parents=True)
        (chosen / name / "new.jpg").write_bytes(things[name][5].read_bytes())
    (chosen / "cup" / "notes.jpg").write_text("these are no pixels")
    page.set_input_files("input[webkitdirectory]", chosen)
    shown.until(lambda: shown.counts() == {"house": 6, "cup": 4, "fish": 3, "star": 1})
    assert "notes.jpg" in page.locator("section[aria-label*='could not be used']").inner_text()

    # Pictures of two classes in one drop: those of one are selected, then the key of their class.
    page.get_by_role("listbox", name="Pictures of star").wait_for()
    shown.drag_in(things["fish"][3], things["fish"][4], things["star"][3])
    tray = page.get_by_role("listbox", name="What are these?").get_by_role("option")
    tray.nth(2).wait_for()
    tray.nth(2).click()  # all are selected at first
    page.keyboard.press("3")
    shown.until(lambda: shown.counts()["fish"] == 5)
    shown.until(lambda: tray.count() == 1)
    tray.nth(0).click()
    page.get_by_role("region", name="What are these?").get_by_role("button", name="4 star").click()
    shown.until(lambda: shown.counts()["star"] == 2)
    page.evaluate("document.activeElement?.blur()")
    shown.paste(things["star"][4])
    tray.nth(0).wait_for()
    page.keyboard.type("star")  # the name is asked for at once
    page.keyboard.press("Enter")
    shown.until(lambda: shown.counts()["star"] == 3)

    page.get_by_role("button", name="More about star").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.keyboard.type("comet")
    page.keyboard.press("Enter")
    shown.until(lambda: shown.counts().get("comet") == 3)
    page.get_by_role("button", name="More about comet").click()
    page.get_by_role("menuitem", name="Same as").click()
    page.get_by_role("dialog").get_by_role("button", name="fish").click()
    shown.until(lambda: shown.counts() == {"house": 6, "cup": 4, "fish": 8})
    page.get_by_role("button", name="More about fish").click()
    page.get_by_role("menuitem", name="Delete for good").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete for good").click()
    shown.until(lambda: shown.counts() == {"house": 6, "cup": 4})


def test_camera(show: Callable[..., Any]) -> None:
    shown = show()
    page = shown.open()
    page.get_by_role("button", name="Camera").click()
    page.get_by_role("dialog").get_by_label("Name of the class").fill("green thing")
    button = page.locator(".hold:not([aria-disabled=true])")
    button.wait_for()
    button.hover()
    page.mouse.down()
    shown.until(lambda: re.search("[3-9] taken", page.locator(".hold").inner_text()) is not None)
    page.mouse.up()
    shown.until(lambda: shown.counts().get("green thing", 0) >= 2)
    before = shown.counts()["green thing"]
    button.focus()  # and by the keyboard
    page.keyboard.down("Space")
    shown.until(lambda: "1 taken" in page.locator(".hold").inner_text())
    page.keyboard.up("Space")
    shown.until(lambda: shown.counts()["green thing"] > before)
    page.keyboard.press("Escape")
    shown.go("try")
    page.get_by_role("button", name="Use the camera").click()
    page.locator(f"{ANSWER} ol li").first.wait_for()
    page.locator(f"{ANSWER} .why li").first.wait_for()  # reasons of the live answer
    assert "live" in page.locator(ANSWER).inner_text() or "None of these" in page.locator(ANSWER).inner_text()
    page.get_by_role("button", name="Stop the camera").click()


def test_what_it_knows_what_it_cost_and_history(show: Callable[..., Any], things: Things) -> None:
    shown = show()
    page = shown.open()
    shown.teach("cup", things["cup"][:5])
    shown.teach("star", [*things["star"][:4], things["cup"][5]])
    shown.go("know")
    page.locator("svg[role=img] circle").nth(65).wait_for(state="attached")  # 64 base classes and the two
    cards = page.locator("section[aria-label='Class by class'] li.card")
    cards.nth(1).wait_for()
    assert {name.strip() for name in cards.locator("h2").all_inner_texts()} == {"cup", "star"}
    said = cards.nth(0).inner_text()
    assert "will be recognised" in said and "With five more pictures" in said and "ixed up with" in said
    texts = page.locator(".map text").all_text_contents()
    assert {"cup", "star"} <= set(texts)  # taught classes have their names on the map
    page.get_by_label("Find on the map").fill("star")
    page.locator("circle.found").wait_for(state="attached")
    page.get_by_role("button", name="Move to cup").click()  # the cup among the stars is out of place
    shown.until(lambda: shown.counts() == {"cup": 6, "star": 4})
    page.set_input_files("main input[type=file] >> nth=0", [things["house"][0], things["fish"][5]])
    page.get_by_label("Name of picture 1").wait_for()
    assert page.get_by_label(re.compile("Name of picture")).count() == 2
    page.get_by_label("Name of picture 1").fill("house")
    page.get_by_role("button", name="Teach", exact=True).first.click()
    shown.until(lambda: shown.counts().get("house") == 1)

    shown.go("cost")
    figures = page.locator(".figure")
    figures.nth(1).wait_for()
    before, now = (float(text.rstrip("%")) for text in figures.all_inner_texts())
    assert 0 < now <= before + 1 and before <= 100
    changed = int(re.search(r"([\d,]+) of 2,000 held-out", page.locator("main").inner_text())[1])  # type: ignore[index]
    rows = page.locator("tbody tr")
    while page.locator("section:has(table) > button").count():
        page.locator("section:has(table) > button").click()
    assert changed == sum(int(text) for text in rows.locator("td.number").all_inner_texts())
    assert page.locator("section li.changed img").count() >= 1  # taught pictures, before and now
    slider = page.get_by_label("Share of pictures of taught classes")
    slider.fill("60")
    shown.until(lambda: shown.state()["novel_share"] == 0.6)
    shown.until(lambda: float(figures.nth(1).inner_text().rstrip("%")) < now)  # the old ones pay

    shown.go("history")
    lines = page.locator("main ol li")
    lines.nth(4).wait_for()
    shown.until(lambda: "now" in lines.nth(0).inner_text())
    page.get_by_role("button", name="Go back to here, change 1", exact=True).click()
    shown.until(lambda: list(shown.counts()) == ["cup"])
    page.get_by_role("button", name="Go back to here, change 4").click()  # going back has lost nothing
    shown.until(lambda: len(shown.counts()) == 3)
    assert "local" in lines.nth(0).inner_text()


def test_taken_away_and_back_again(
    show: Callable[..., Any], things: Things, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model folder and ONNX as downloads, the folder loaded again, and the programs that the page shows."""
    shown = show()
    page = shown.open()
    shown.teach("cup", things["cup"][:4])
    shown.go("take")
    files = {}
    for what in ("Model folder", "ONNX file"):
        with page.expect_download() as started:
            page.get_by_role("button", name=f"Download {what}").click()
        files[what] = tmp_path / started.value.suggested_filename
        started.value.save_as(files[what])
    with zipfile.ZipFile(files["Model folder"]) as packed:
        packed.extractall(tmp_path / "out")
    folder = next((tmp_path / "out").rglob("*.json")).parent
    assert wdae.load(folder).added == ("cup",)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(files["ONNX file"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["labels"])[-1] == "cup"

    with page.expect_response(re.compile("models/import")):
        page.set_input_files("main input[type=file]", files["Model folder"])
    page.get_by_role("region", name="Messages").get_by_text("is here").wait_for()
    other = page.evaluate("localStorage.getItem('wdae-model')")
    assert other != shown.model
    shown.go("teach")
    page.get_by_role("heading", name="cup").wait_for()
    pictures_of(page, "cup").nth(3).wait_for()

    (tmp_path / "photo.jpg").write_bytes(things["cup"][5].read_bytes())
    monkeypatch.chdir(tmp_path)
    shown.go("take")
    codes = {}
    for name in ("Python", "curl", "JavaScript"):
        page.get_by_role("tab", name=name).click()
        codes[name] = page.get_by_role("tabpanel").inner_text()
        assert other in codes[name] and shown.address in codes[name]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(codes["Python"], {})
    by_curl = json.loads(
        subprocess.run(["bash", "-c", codes["curl"]], capture_output=True, check=True).stdout
    )
    bytes_ = list((tmp_path / "photo.jpg").read_bytes())
    photo = "const photo = new Blob([new Uint8Array(bytes)])"
    code = f"async bytes => {{ {photo}; {codes['JavaScript']}; return prediction }}"
    assert by_curl["prediction"] == page.evaluate(code, bytes_) == printed.getvalue().rsplit(" ", 1)[0]
    page.get_by_role("button", name="Copy").click()
    shown.until(lambda: page.evaluate("navigator.clipboard.readText()") == codes["JavaScript"])


def test_five_hundred_classes(show: Callable[..., Any], tmp_path: Path) -> None:
    """A model of 500 classes comes in as a zip; its map can be read; nothing held out, no cost is told."""
    model = wdae.embedded_model()
    whole = wdae.Model(dataclasses.replace(model.base, held_out=None))
    whole.backbone = model.backbone
    draw = torch.Generator().manual_seed(0)
    near = torch.randint(len(model.base.names), (436,), generator=draw)
    features = unit(model.base.weights[near] + 0.04 * torch.randn(436, model.base.dim, generator=draw))
    whole.add({f"{model.base.names[c]} {i}": features[i : i + 1] for i, c in enumerate(near.tolist())})
    wdae.save(whole, tmp_path / "model")
    file = tmp_path / "many things.zip"
    with zipfile.ZipFile(file, "w") as packed:
        for one in (tmp_path / "model").iterdir():
            packed.write(one, f"model/{one.name}")

    shown = show()
    page = shown.open("take")
    page.set_input_files("main input[type=file]", file)
    page.get_by_role("region", name="Messages").get_by_text("“many things” is here").wait_for()
    shown.go("know")
    page.locator("svg[role=img] circle").nth(499).wait_for(state="attached")
    boxes = page.evaluate(
        "() => [...document.querySelectorAll('.map text')].map(one => one.getBBox())"
        ".map(({x, y, width, height}) => [x, y, width, height])"
    )
    assert len(boxes) >= 40  # names that are shown from afar
    over = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if overlap(a, b)]
    assert over == []
    for _ in range(4):
        page.get_by_role("button", name="Closer").click()
    seen, named = (page.locator(f".map {kind}").count() for kind in ("circle", "text"))
    assert named >= 0.8 * seen > 0  # from near, nearly every class has its name
    page.get_by_label("Find on the map").fill("bolete")
    assert "bolete" in page.locator(".map text.strong").all_text_contents()[0]
    shown.go("cost")
    page.get_by_text("no held-out pictures").wait_for()
    shown.go("teach")
    page.get_by_label("Find a class").fill("bolete")
    shown.until(lambda: 0 < page.locator("main ul.cards > li").count() < 30)


def overlap(a: list[float], b: list[float]) -> bool:
    """Whether two boxes (x, y, width, height) share more than a pixel's edge."""
    return all(a[i] + a[i + 2] > b[i] + 1 and b[i] + b[i + 2] > a[i] + 1 for i in (0, 1))


def serious(page: Any) -> list[Any]:
    """What axe finds that is serious or worse."""
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        (one["id"], [node["target"] for node in one["nodes"]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_and_screen_reader(show: Callable[..., Any], things: Things, axe: str, scheme: str) -> None:
    """390 px wide, nothing is cut off, and axe finds nothing serious in any view."""
    phone = scheme == "dark"  # each scheme once, each width once
    size = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True} if phone else {}
    shown = show(color_scheme=scheme, bypass_csp=True, **size)  # axe comes in as a script of the test
    page = shown.open()
    shown.teach("a rather long name of a class that has to find its place", things["cup"][:3])
    shown.teach("star", [*things["star"][:3], things["cup"][5]])
    page.evaluate(axe)
    for view in VIEWS:
        shown.go(view)
        if view == "try":
            page.set_input_files("main input[type=file]", things["cup"][4])
            page.locator(f"{ANSWER} .why li").first.wait_for()
        elif view == "teach":
            shown.drop(things["fish"][:1])
            page.locator("main .tray").wait_for()
            page.locator("[role=option]").last.click()
        elif view == "know":
            page.locator("main li.card").nth(1).wait_for()
        elif view == "cost":
            page.locator(".figure").first.wait_for()
        page.wait_for_timeout(300)
        assert serious(page) == [], view
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"], view


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
    tab_to(page, "[aria-label='More about star']")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # the menu's first item: rename
    page.keyboard.type("comet")
    page.keyboard.press("Enter")
    shown.until(lambda: shown.counts() == {"cup": 3, "comet": 2})
    shown.until(lambda: page.evaluate("document.activeElement.ariaLabel") == "More about comet")
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
        page.get_by_role("region", name="Messages").get_by_text("class name").first.wait_for()
        page.get_by_role("button", name="Discard").click()  # the picture has waited for a better name
    assert shown.counts() == before


def test_quick_and_small(show: Callable[..., Any]) -> None:
    shown = show()
    page = shown.open()
    page.get_by_role("button", name="Choose pictures").wait_for()
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
