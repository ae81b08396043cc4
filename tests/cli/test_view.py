"""`mechrl view` and `mechrl export` as users run them."""

from __future__ import annotations

import errno
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from mechrl.circuit import Circuit
from mechrl.cli.view import export_command, view_command
from mechrl.errors import MechRLError
from mechrl.models import load_model
from tests.viewer.circuits import SMALL, random_circuit


@pytest.fixture
def circuit(tmp_path: Path) -> Path:
    random_circuit(SMALL, 20, removed=9).save(tmp_path / "circuit.json")
    return tmp_path / "circuit.json"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def start(*arguments: object, **environment: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "mechrl.cli", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def shown(path: Path) -> list[dict]:
    return json.loads(path.read_text().partition('id="data">')[2].partition("</script>")[0])["circuits"]


def test_viewing_until_ctrl_c(circuit: Path) -> None:
    process = start("view", circuit, "--no-browser", "--no-model")
    url = process.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert b"ioi in nowhere/nothing" in answer.read()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 0 and stdout == "" and "Traceback" not in stderr


def test_a_folder_stands_for_its_circuit(circuit: Path, out: Path) -> None:
    """Its notes as well."""
    name = Circuit.load(circuit).graph.source_names[1]
    (circuit.parent / "circuit.notes.json").write_text(json.dumps({"pins": [name]}))
    export_command([circuit.parent], html=out / "a.html", no_model=True)
    export_command([circuit], html=out / "b.html", no_model=True)
    assert (out / "a.html").read_bytes() == (out / "b.html").read_bytes()
    assert shown(out / "a.html")[0]["notes_of_reader"]["pins"] == [name]


def test_a_circuit_file_cannot_make_us_fetch_a_model(circuit: Path, out: Path) -> None:
    asked: list[str] = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}).start()
        environment = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}", "HF_HUB_OFFLINE": "0"}
        process = start("export", circuit, "--html", out / "page.html", **environment)
        stdout, stderr = process.communicate(timeout=60)
        asked_by_file = list(asked)
        told = start(
            "export", circuit, "--html", out / "page.html", "--model", "nowhere/nothing", **environment
        )
        told_stderr = told.communicate(timeout=60)[1]
        hub.shutdown()
    assert process.returncode == 0 and stdout.strip() == str(out / "page.html")
    assert "not on this machine" in stderr and len(stderr.splitlines()) == 1
    assert not asked_by_file
    assert (
        told.returncode == 1 and len(told_stderr.splitlines()) == 1 and asked
    )  # the user named the model, so it is fetched


def test_a_model_that_is_here_is_used(out: Path) -> None:
    toy = load_model("toy")
    mine = random_circuit(toy.graph, 20, removed=5, model="toy", checksum=toy.checksum, pairs=3)
    mine.save(out / "circuit.json")
    export_command([out / "circuit.json"], html=out / "page.html", device="cpu")
    assert shown(out / "page.html")[0]["stops"]["f"] and shown(out / "page.html")[0]["attention"]


def test_what_is_given_holds_for_the_circuits_it_fits(
    circuit: Path, out: Path, capsys: pytest.CaptureFixture
) -> None:
    toy = load_model("toy")
    row = {
        "clean": "When John and Mary went to the store, Mary gave a book to",
        "answer": " John",
        "foil": " Mary",
    }
    row |= {"corrupt": "When Paul and Anna went to the store, Bob gave a book to", "part": "discovery"}
    (out / "mine.jsonl").write_text(json.dumps(row))
    fields = dict(removed=5, model="elsewhere/toy", checksum=toy.checksum, behaviour="mine", pairs=1)
    random_circuit(toy.graph, 20, **fields).save(out / "mine.json")
    export_command(
        [out / "mine.json", circuit],
        html=out / "two.html",
        model="toy",
        behaviour=str(out / "mine.jsonl"),
        device="cpu",
    )
    one, other = shown(out / "two.html")
    assert one["stops"]["f"] and one["pairs"] and one["attention"]
    assert other["stops"]["f"] is None and "nowhere/nothing is not on this machine" in other["notes"][-1]
    assert capsys.readouterr().err.startswith(f"{circuit}: nowhere/nothing")


def test_a_behaviour_that_is_not_known_is_done_without(out: Path, capsys: pytest.CaptureFixture) -> None:
    random_circuit(SMALL, 20, behaviour="/etc/passwd").save(out / "circuit.json")
    export_command([out / "circuit.json"], html=out / "page.html", device="cpu")
    assert "is not built in; give its file by --behaviour" in shown(out / "page.html")[0]["notes"][-1]
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_two_circuits_on_one_page(circuit: Path, out: Path) -> None:
    export_command([circuit, circuit], html=out / "two.html", no_model=True)
    assert len(shown(out / "two.html")) == 2


def test_for_eap_ig(circuit: Path, out: Path, capsys: pytest.CaptureFixture) -> None:
    export_command([circuit], eap_ig=out / "graph.json")
    Circuit.load(circuit).to_eap_ig(out / "expected.json")
    assert (out / "graph.json").read_bytes() == (out / "expected.json").read_bytes()
    assert capsys.readouterr().out.strip() == str(out / "graph.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"circuits": ["missing.json"]}, "missing.json: no such file"),
        ({"circuits": ["truncated.json"]}, "truncated.json: not valid JSON, or cut short"),
        ({"circuits": ["circuit.json"] * 7}, "up to 6 circuits"),
        ({"model": "toy"}, "the circuit is of nowhere/nothing"),
        ({"model": "toy", "no_model": True}, "contradict"),
        ({"behaviour": "greater-than"}, "the circuit is of the behaviour 'ioi'"),
        ({"behaviour": "missing.jsonl"}, "missing.jsonl"),
        ({"html": "."}, "is a folder"),
        ({"html": "/proc/page.html"}, "/proc/page.html: cannot be written"),
        ({"html": "circuit.json/page.html"}, "cannot be written"),
        ({"html": None}, "nothing to write"),
        ({"html": None, "eap_ig": "/proc/graph.json"}, "/proc/graph.json: cannot be written"),
        ({"html": None, "eap_ig": "graph.json", "circuits": ["circuit.json"] * 2}, "one by one"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    circuit: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, message: str
) -> None:
    monkeypatch.chdir(circuit.parent)
    Path("truncated.json").write_bytes(circuit.read_bytes()[:-200])
    before = sorted(Path().rglob("*"))
    arguments = {"circuits": ["circuit.json"], "html": "page.html", "device": "cpu"} | changes
    paths = {key: arguments[key] and Path(arguments[key]) for key in ("html", "eap_ig") if key in arguments}
    arguments |= paths | {"circuits": [Path(c) for c in arguments["circuits"]]}
    with pytest.raises(MechRLError, match=message) as caught:
        export_command(**arguments)
    assert "\n" not in str(caught.value)
    assert sorted(Path().rglob("*")) == before


def test_viewing_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MechRLError, match="no such file"):
        view_command([tmp_path / "missing.json"], browser=False)


def test_a_full_disk_leaves_the_old_file(circuit: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (out / "page.html").write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MechRLError, match="No space left"):
        export_command([circuit], html=out / "page.html", no_model=True)
    assert [p.name for p in out.iterdir()] == ["page.html"] and (out / "page.html").read_text() == "old"
