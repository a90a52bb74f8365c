"""Draw the pictures of docs/guides/serve.md: the page of ``wdae serve`` in Chromium, with painted pictures.

    python scripts/draw_page.py [FOLDER]

Everything that the screenshots show was painted here or answered by the service.
"""

from __future__ import annotations

import math
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFilter

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/helpers"))
from running_service import RunningService

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
]
INSTALL = "apt-get install chromium, and pip install playwright"


def paint(kind: str, seed: int, side: int = 240) -> Image.Image:
    """A cup, a star, a fish or a house before a background of chance."""
    chance = random.Random(f"{kind}-{seed}")
    sky = tuple(chance.randint(150, 240) for _ in range(3))
    ground = tuple(chance.randint(70, 160) for _ in range(3))
    picture = Image.new("RGB", (side, side), sky)
    draw = ImageDraw.Draw(picture)
    draw.rectangle([0, side * chance.uniform(0.6, 0.75), side, side], fill=ground)
    x, y = (chance.uniform(0.42, 0.58) * side for _ in range(2))
    s = chance.uniform(0.2, 0.3) * side
    tone = chance.randint(-20, 20)
    if kind == "cup":
        colour = (205 + tone, 74, 60)
        draw.arc(
            [x + s * 0.5, y - s * 0.5, x + s * 1.6, y + s * 0.6], -95, 95, fill=colour, width=round(s * 0.24)
        )
        draw.rounded_rectangle([x - s, y - s, x + s, y + s], s * 0.25, fill=colour)
        draw.ellipse([x - s, y - s * 1.25, x + s, y - s * 0.75], fill=(110, 34, 28))
    elif kind == "star":
        turn = chance.uniform(-0.3, 0.3)
        radii = [s * (1.35 if i % 2 == 0 else 0.55) for i in range(10)]
        corners = [
            (x + r * math.sin(i * math.pi / 5 + turn), y - r * math.cos(i * math.pi / 5 + turn))
            for i, r in enumerate(radii)
        ]
        draw.polygon(corners, fill=(246, 200 + tone // 2, 66), outline=(130, 96, 8), width=3)
    elif kind == "house":
        draw.rectangle([x - s, y - s * 0.4, x + s, y + s], fill=(232, 222 + tone // 2, 205))
        draw.polygon(
            [(x - s * 1.25, y - s * 0.4), (x, y - s * 1.4), (x + s * 1.25, y - s * 0.4)], fill=(150, 62, 48)
        )
        draw.rectangle([x - s * 0.2, y + s * 0.3, x + s * 0.25, y + s], fill=(96, 66, 44))
    else:
        colour = (52, 96 + tone, 176)
        draw.polygon([(x - s, y), (x - s * 1.8, y - s * 0.6), (x - s * 1.8, y + s * 0.6)], fill=colour)
        draw.ellipse([x - s * 1.3, y - s * 0.75, x + s * 1.3, y + s * 0.75], fill=colour)
        for i in range(4):
            at = x - s * 0.7 + i * s * 0.45
            draw.line(
                [at, y - s * 0.55, at - s * 0.1, y + s * 0.55], fill=(238, 240, 248), width=round(s * 0.14)
            )
        draw.ellipse([x + s * 0.75, y - s * 0.3, x + s * 0.95, y - s * 0.1], fill=(20, 24, 32))
    return picture.filter(ImageFilter.GaussianBlur(0.8))


def painted(folder: Path, kind: str, count: int, first: int = 0) -> list[Path]:
    """Files of painted pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{kind}-{first + i}.jpg" for i in range(count)]
    for i, file in enumerate(files):
        paint(kind, first + i).save(file, quality=92)
    return files


def teach(page: Any, name: str, files: list[Path]) -> float:
    """Choose pictures and name them; the seconds until they are known."""
    page.set_input_files("main input[type=file] >> nth=0", files)
    page.wait_for_selector("form >> text=What are these?")
    page.keyboard.type(name)
    start = time.monotonic()
    page.keyboard.press("Enter")
    page.get_by_role("listbox", name=f"Pictures of {name}").wait_for()
    return time.monotonic() - start


def draw(folder: Path, images: Path) -> None:
    from playwright.sync_api import sync_playwright

    things = {kind: painted(folder / kind, kind, 8) for kind in ("cup", "star", "fish", "house")}
    with RunningService(folder / "data") as service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        wide = {"viewport": {"width": 1280, "height": 860}, "device_scale_factor": 1.25}
        page = browser.new_context(**wide).new_page()
        page.goto(service.url)
        for kind in ("cup", "star", "fish"):
            teach(page, kind, things[kind][:6])

        def shoot(name: str, view: str, there: str) -> None:
            page.locator(f'nav a[href="#/{view}"]').click()
            page.locator(there).first.wait_for()
            page.wait_for_timeout(700)
            page.screenshot(path=images / f"serve-{name}.png")

        page.get_by_text("fish learned").first.wait_for()
        page.get_by_role("region", name="Messages").get_by_role("button", name="Close").click()
        shoot("teach", "teach", "[role=option] img")
        page.locator('nav a[href="#/try"]').click()
        page.set_input_files("main input[type=file]", things["fish"][7])
        shoot("try", "try", "text=Why?")
        shoot("know", "know", "svg[role=img] circle")
        shoot("cost", "cost", ".figure")
        shoot("history", "history", "ol li")
        phone = {"viewport": {"width": 390, "height": 780}, "is_mobile": True, "has_touch": True}
        page = browser.new_context(**phone, device_scale_factor=1.5, color_scheme="dark").new_page()
        page.goto(service.url)
        shoot("phone", "teach", "[role=option] img")
        browser.close()


def main(words: list[str]) -> None:
    images = Path(words[0]) if words else IMAGES
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder), images)
    print(images)


if __name__ == "__main__":
    main(sys.argv[1:])
