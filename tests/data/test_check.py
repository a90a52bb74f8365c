"""``wdae data check`` says what is there, what is missing and what cannot be read."""

from __future__ import annotations

import shutil

import numpy as np
from PIL import Image

from wdae.cli.app import run_app
from wdae.cli.data import app, rendered
from wdae.data import open_dataset
from wdae.data.check import check
from wdae.data.contact_sheet import contact_sheet
from wdae.parts import Part


def test_a_sound_set(class_folders, tmp_path, capsys):
    assert run_app(app, ["check", str(class_folders), "--sheet-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "layout folders, 3 classes" in out
    assert any(line.split() == ["base-train", "3", "12", "4"] for line in out.splitlines())
    assert (tmp_path / "sheet-base-train.png").is_file()


def test_broken_missing_and_copied(class_folders, tmp_path, capsys):
    (class_folders / "cat" / "0.jpg").write_bytes(b"")
    (class_folders / "empty").mkdir()
    shutil.copy(class_folders / "cat" / "1.jpg", class_folders / "dog" / "1.jpg")
    arguments = ["check", str(class_folders), "--sheet-dir", str(tmp_path)]
    assert run_app(app, arguments) == 2
    out, err = capsys.readouterr()
    assert f"cannot be read: {class_folders / 'cat' / '0.jpg'}: the file is empty" in out
    assert "missing: class 'empty' has 0 pictures" in out
    assert "the same picture in several classes" in out
    assert "1 pictures cannot be read" in err
    shutil.rmtree(class_folders / "empty")
    assert run_app(app, [*arguments, "--skip-broken"]) == 0
    assert "0.jpg: the file is empty" in capsys.readouterr().out


def test_a_folder_with_nothing(tmp_path, capsys):
    assert run_app(app, ["check", str(tmp_path)]) == 2
    assert "nothing recognised" in capsys.readouterr().err


def test_long_lists_are_cut(class_folders):
    report = check(class_folders)
    report.broken = [f"picture {n}" for n in range(50)]
    text = rendered(report)
    assert "cannot be read: 30 more" in text
    assert "picture 19" in text
    assert "picture 20\n" not in text


def test_contact_sheet_shows_the_pictures(class_folders, tmp_path):
    (class_folders / "dog" / "0.jpg").write_text("no picture")
    image_set = open_dataset(class_folders)
    path = contact_sheet(image_set, Part.BASE_TRAIN, tmp_path / "deep" / "sheet.png")
    sheet = np.asarray(Image.open(path))
    assert sheet.shape[0] > 3 * 72
    assert sheet.std() > 10
    pure_red = (sheet == [255, 0, 0]).all(2)
    assert pure_red.sum() > 100, "the unreadable picture is a crossed tile"
