"""Writing replaces only regular files and leaves nothing else behind, for every command and every output."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from mechrl.cli import app as cli
from tests.viewer.circuits import SMALL, random_circuit


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to("elsewhere")


def dangling(path: Path) -> None:
    path.symlink_to("nothing")


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


SMALL_RUN = ["--k", "20", "--envs", "2", "--iterations", "1", "--device", "cpu", "--force"]
WRITERS = {
    "page.html": ["export", "circuit.json", "--no-model", "--html", "out/page.html"],
    "graph.json": ["export", "circuit.json", "--eap-ig", "out/graph.json"],
    "circuit.json": ["search", "top-n", "ioi", "--pairs", "2", "--device", "cpu", "--out", "out"],
    "state.safetensors": ["search", "top-n", "ioi", "--pairs", "2", "--device", "cpu", "--out", "out"],
    "metrics.jsonl": ["train", "--behaviours", "ioi", *SMALL_RUN, "--out", "out"],
    "checkpoint.safetensors": ["train", "--behaviours", "ioi", *SMALL_RUN, "--out", "out"],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))
    random_circuit(SMALL, 20).save(tmp_path / "circuit.json")
    Path("out").mkdir()
    Path("out/elsewhere").write_text("somebody's")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    ("make", "what"), [(fifo, "a FIFO"), (link, "a link"), (dangling, "a link"), (device, "a device")]
)
def test_what_is_no_file_is_not_replaced(
    name: str, make, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before any work is done, in one line."""
    path = Path("out", name)
    make(path)
    before = os.lstat(path)
    assert cli.run(WRITERS[name]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"out/{name}: cannot be written (it is {what}" in said
    after = os.lstat(path)
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)
    assert Path("out/elsewhere").read_text() == "somebody's" and not Path("out/nothing").exists()


def test_a_link_to_a_folder_on_the_way_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("linked").symlink_to("out")
    assert cli.run(["export", "circuit.json", "--no-model", "--html", "linked/page.html"]) == 0
    assert Path("out/page.html").is_file() and Path("linked").is_symlink()


def test_new_files_have_the_permissions_of_any_other() -> None:
    before = os.umask(0o027)
    try:
        assert cli.run(["export", "circuit.json", "--no-model", "--html", "out/page.html"]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat("out/page.html").st_mode) == 0o640


def test_threads_that_write_one_file_do_not_share_what_they_write_first() -> None:
    """Each thread leaves a whole file, and none fails; with one temporary name for all threads most would."""
    circuits = [random_circuit(SMALL, 20, seed=seed) for seed in range(4)]
    failed: list[BaseException] = []

    def save(mine) -> None:
        try:
            for _ in range(20):
                mine.save("out/circuit.json")
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=save, args=[mine]) for mine in circuits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    whole = Path("out/circuit.json").read_bytes()
    assert any(whole == _saved(mine) for mine in circuits)
    assert sorted(path.name for path in Path("out").iterdir()) == ["circuit.json", "elsewhere"]


def _saved(mine) -> bytes:
    mine.save("one.json")
    return Path("one.json").read_bytes()
