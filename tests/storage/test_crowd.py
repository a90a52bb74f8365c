"""Two writers of one folder, killed writers, vanished and read-only folders."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wdae.errors import StorageError
from wdae.storage import files
from wdae.storage.lock import alone
from wdae.storage.unfinished import empty, unfinished, working

HOLD = "import sys, time; from pathlib import Path; from wdae.storage.lock import alone\n" + (
    "with alone(Path(sys.argv[1]), make=True):\n    print('held', flush=True); time.sleep(60)\n"
)


def holder(folder: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_told_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with (
            pytest.raises(StorageError, match=r"another process is changing .*; nothing was changed"),
            alone(tmp_path, 0),
        ):
            pass
        with pytest.raises(StorageError, match=r"did not finish in 0\.1 seconds"), alone(tmp_path, 0.1):
            pass
    finally:
        process.kill()
        process.wait()
    with alone(tmp_path, 5):
        pass


def test_a_lock_is_no_link_and_no_pipe(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / ".lock").symlink_to(target)
    with pytest.raises(StorageError, match="cannot change"), alone(tmp_path):
        pass
    assert not target.exists()
    (tmp_path / ".lock").unlink()
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(StorageError, match="not a regular file"), alone(tmp_path):
        pass
    with pytest.raises(StorageError, match="cannot change"), alone(tmp_path / "vanished"):
        pass


def test_work_stays_until_it_is_finished(tmp_path: Path) -> None:
    output = tmp_path / "model"

    def work(*, fail: bool) -> None:
        with working(output) as folder:
            (folder / "half").write_text("done")
            if fail:
                raise KeyboardInterrupt
            output.mkdir()

    with pytest.raises(KeyboardInterrupt):
        work(fail=True)
    assert (unfinished(output) / "half").is_file()
    work(fail=False)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(StorageError, match="exists already"):
        work(fail=False)


def test_nothing_to_go_on_from_leaves_nothing(tmp_path: Path) -> None:
    def nothing() -> None:
        with working(tmp_path / "model") as folder:
            (folder / "half").write_text("half")
            empty(folder)
            raise ValueError

    with pytest.raises(ValueError):
        nothing()
    assert list(tmp_path.iterdir()) == []


def test_two_workers_on_one_output(tmp_path: Path) -> None:
    process = holder(unfinished(tmp_path / "model"))
    try:
        with pytest.raises(StorageError, match="another process"), working(tmp_path / "model"):
            pass
    finally:
        process.kill()
        process.wait()


def test_work_that_links_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "model")
    folder.mkdir()
    (folder / "features-000001.safetensors").symlink_to("/etc/passwd")
    with pytest.raises(StorageError, match="is a link"), working(tmp_path / "model"):
        pass


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    dead, alive = dead_process(), os.getpid()
    for name in (
        f".x.json.{files._HOST}-{dead}-01234567.tmp",
        f".x.{files._HOST}-{dead}-01234567.replaced",
        f".x.replaced-{dead}",
        f".y.{files._HOST}-{alive}-01234567.tmp",
        ".z.tmp",
        "x",
    ):
        (tmp_path / name).mkdir()
    files.write_text(tmp_path / "other", "text")
    kept = {f".y.{files._HOST}-{alive}-01234567.tmp", ".z.tmp", "other", "x"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_folder_moved_aside_for_one_that_never_came_is_put_back(tmp_path: Path) -> None:
    aside = tmp_path / f".run.{files._HOST}-{dead_process()}-01234567.replaced"
    aside.mkdir()
    (aside / "recipe.yaml").write_text("a: 1")
    files.remove_leftovers(tmp_path)
    assert (tmp_path / "run" / "recipe.yaml").read_text() == "a: 1"


def test_a_folder_is_replaced_once_the_new_one_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    (target / "old").touch()

    def replace(*, fail: bool) -> None:
        with files.atomic_folder(target, replace=True) as new:
            (new / "new").touch()
            if fail:
                raise ValueError

    with pytest.raises(ValueError):
        replace(fail=True)
    assert [path.name for path in target.iterdir()] == ["old"]
    replace(fail=False)
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "new"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_clear_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    for write in (files.write_text, files.append_text):
        with pytest.raises(StorageError, match="Permission denied"):
            write(tmp_path / "x", "text")


def test_a_folder_that_vanishes_is_one_clear_line(tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    def vanish() -> None:
        with files.atomic_file(folder / "x") as temporary:
            temporary.write_text("text")
            for path in sorted(folder.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
            folder.rmdir()

    with pytest.raises(StorageError, match="nothing was written"):
        vanish()
    with pytest.raises(StorageError, match="No such file"):
        files.append_text(folder / "x", "text")


SLEEP = (
    "import sys, time, wdae.cli.app as app\n"
    "from cyclopts import App\n"
    "root = App(name='x')\n"
    "@root.command\n"
    "def sleep():\n"
    "    print('begun', flush=True); time.sleep(60)\n"
    "sys.exit(app.run_app(root, ['sleep']))\n"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_command_as_ctrl_c_does(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEP], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + number, "interrupted\n")
