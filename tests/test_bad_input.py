"""Bad input to every command gives one line that says what to do, a non-zero exit code, and nothing half-written.

Runs in this process where that is equivalent: `cli.run` is all of `main` except for the process's own signals.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mechrl.cli import app as cli
from mechrl.cli.terminal import Live, answer, answer_table
from mechrl.messages import plain, say
from mechrl.models import load_model, resolve_device
from mechrl.models.base import Model
from tests.agents.paper.small import shrink, write_policy
from tests.viewer.circuits import SMALL, random_circuit

ESCAPE = "\x1b[31mred\x07\x9b2J\n"  # colours, rings the bell, clears the screen, and starts a new line
CIRCUITS = {
    "validate": ["validate", "{}"],
    "export": ["export", "{}", "--html", "out/page.html"],
    "export-eap-ig": ["export", "{}", "--eap-ig", "out/graph.json"],
    "view": ["view", "{}", "--no-browser"],
}
BEHAVIOURS = {
    "behaviours": ["behaviours", "-b", "{}"],
    "search": ["search", "top-n", "{}", "--out", "out"],
    "discover": ["discover", "{}", "--out", "out"],
    "discover-paper": ["discover", "{}", "--agent", "paper", "--policy", "policy", "--out", "out"],
    "adapt": ["adapt", "{}", "--policy", "policy", "--out", "out"],
    "train": ["train", "--behaviours", "{}", "--out", "out"],
    "compare": ["compare", "--behaviours", "{}", "--methods", "greedy", "--out", "out"],
    "reproduce": ["reproduce", "--behaviours", "{}", "--out", "out"],
    "validate": ["validate", "circuit.json", "--behaviour", "{}"],
    "export": ["export", "circuit.json", "--behaviour", "{}", "--html", "out/page.html"],
    "view": ["view", "circuit.json", "--behaviour", "{}", "--no-browser"],
}
# small workloads, for commands that write to a folder
SMALL_RUN = ["--envs", "2", "--iterations", "1", "--device", "cpu", "--force"]
PAPER = ["--agent", "paper", "--policy", "policy"]
WRITERS = {
    "search": ["search", "top-n", "ioi", "--pairs", "2", "--device", "cpu", "--out", "{}"],
    "discover-paper": ["discover", "ioi", *PAPER, "--pairs", "2", "--device", "cpu", "--out", "{}"],
    "adapt": ["adapt", "ioi", "--policy", "policy", *SMALL_RUN, "--out", "{}"],
    "train": ["train", "--behaviours", "ioi", "--k", "20", *SMALL_RUN, "--out", "{}"],
    "export": ["export", "circuit.json", "--no-model", "--html", "{}/page.html"],
    "export-eap-ig": ["export", "circuit.json", "--eap-ig", "{}/graph.json"],
}
WORKSHOPS = {
    "compare": ["compare", "--behaviours", "ioi", "--methods", "greedy", "--out", "{}"],
    "reproduce": ["reproduce", "--quick", "--out", "{}"],
}


def every(table: dict[str, list[str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("command", list(table.values()), ids=list(table))


@pytest.fixture(scope="module")
def toy() -> Model:
    """Loaded once for all tests in this file."""
    return load_model("toy", device="cpu")


@pytest.fixture(scope="module")
def wrong(toy: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A circuit of the embedded model, and files with one error each."""
    folder = tmp_path_factory.mktemp("wrong")
    circuit = random_circuit(toy.graph, 20, removed=3, model="toy", checksum=toy.checksum, pairs=2)
    circuit.save(folder / "circuit.json")
    random_circuit(SMALL, 20, model="toy").save(folder / "other-model.json")
    (folder / "truncated.json").write_bytes((folder / "circuit.json").read_bytes()[:-200])
    (folder / "other-weights.json").write_text(json.dumps(circuit.to_json() | {"checksum": "0" * 64}))
    (folder / "a-file").write_text("in the way")
    (folder / "damaged.jsonl").write_text('{"clean": "a b c", "corrupt": "a b d", "answer"')
    (folder / "empty.csv").write_text("clean,corrupt,answer,foil\n")
    return folder


@pytest.fixture(autouse=True)
def here(toy: Model, wrong: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder with those files."""
    shutil.copytree(wrong, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shrink(monkeypatch)
    write_policy(Path("policy"))

    def load(name: str, **options: object) -> Model:
        return (
            toy
            if name == "toy" and resolve_device(str(options["device"])).type == "cpu"
            else load_model(name, **options)
        )  # type: ignore[arg-type]

    monkeypatch.setattr("mechrl.models.load_model", load)


def files(folder: Path) -> dict[str, bytes]:
    """All files except cached scores."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def refused(
    capsys: pytest.CaptureFixture[str], command: list[str], message: str, code: int = 1, lines: int | None = 1
) -> str:
    """Runs a command that must fail properly; returns its error line."""
    before = files(Path())
    returned = cli.run(command)
    printed = capsys.readouterr()
    said = printed.err.split("\n")
    assert returned == code and printed.out == "", printed
    assert said.pop() == "" and (lines is None or len(said) == lines), said
    assert said[-1].startswith("mechrl: ") and message in said[-1], said
    assert "Traceback" not in printed.err and all(line.isprintable() for line in said)
    assert files(Path()) == before
    return said[-1]


def with_(command: list[str], value: str) -> list[str]:
    return [part.replace("{}", value) for part in command]


# ---- what does not exist or is damaged ------------------------------------------------------------------------------


@every(CIRCUITS)
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.json", "no such file"),
        ("truncated.json", "cut short"),
        ("a-file", "not valid JSON"),
        (".", "cannot be read"),
    ],
)
def test_circuits_that_are_none(
    command: list[str], path: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert path in refused(capsys, with_(command, path), message)


@every({name: CIRCUITS[name] for name in ("validate", "export", "view")})
@pytest.mark.parametrize(
    ("path", "message"), [("other-model.json", "layers"), ("other-weights.json", "other weights")]
)
def test_a_circuit_of_another_model(
    command: list[str], path: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, [*with_(command, path), "--model", "toy", "--device", "cpu"], message)


@every(BEHAVIOURS)
@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("gendered-pronoum", "did you mean gendered-pronoun"),
        ("missing.jsonl", "missing.jsonl: no such file"),
        ("damaged.jsonl", "damaged.jsonl, line 1: not JSON"),
        ("empty.csv", "empty.csv: no rows"),
        (f"{ESCAPE}.csv", r"\x1b[31mred\x07\x9b2J\n.csv: no such file"),
    ],
)
def test_behaviours_that_are_none(
    command: list[str], behaviour: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, with_(command, behaviour), message)


@every({**{k: v for k, v in BEHAVIOURS.items() if k not in WORKSHOPS}, "bench": ["bench", "engine"]})
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("no/such/model", "no such directory"),
        ("missing.gguf", "missing.gguf"),
        ("~nosuchuser/model", "not a path"),
        ("a-file", "not a .gguf file"),
        ("nowhere/nothing", "HF_HUB_OFFLINE"),
        ("m" * 5000, "File name too long"),
        (ESCAPE, r"\x1b[31mred"),
    ],
)
def test_models_that_are_none(
    command: list[str], model: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors that are found only after the behaviour and, for the paper's agent, the policy are loaded; both are valid here."""
    line = refused(capsys, [*with_(command, "ioi"), "--model", model], message)
    assert len(line) < 1100


@every(WORKSHOPS)
def test_a_model_that_a_worker_does_not_find(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*with_(command, "out"), "--model", "no/such/model", "--device", "cpu"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("mechrl: ") == 1
    assert printed.err.splitlines()[-1].startswith("mechrl: no/such/model: no such directory")
    assert all(
        path.startswith(("out/.lock", "out/cells/gate-")) for path in files(Path()) if path.startswith("out/")
    )


@every({name: BEHAVIOURS[name] for name in ("discover-paper", "adapt")})
@pytest.mark.parametrize("folder", ["missing", "a-file", "."])
def test_policies_that_are_none(command: list[str], folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, [*with_(command, "ioi"), "--policy", folder], "not the folder of a policy")


@every({name: WRITERS[name] for name in ("search", "adapt", "train")})
def test_nothing_to_resume(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, [*with_(command, "out"), "--resume"], "start without --resume")


# ---- what is out of range, or not understood ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("search top-n ioi --tau 1.5", 2),
        ("search top-n ioi --tau nan", 2),
        ("search top-n ioi --tau much", 2),
        ("search top-n ioi --pairs 0", 2),
        ("search top-n ioi --k 0", 2),
        ("search top-n ioi --minibatch 20", 1),
        ("search acdc ioi --threshold nan", 2),
        ("search acdc ioi --threshold -1", 2),
        ("search top-n ioi --seed -1", 2),
        ("search guess ioi", 1),
        ("search top-n ioi --holds-on moon", 1),
        ("search top-n ioi --device cuda:99", 1),
        ("search top-n ioi --device meta", 1),
        ("search top-n", 2),
        ("search top-n ioi --nope", 2),
        ("discover ioi --tau 0", 2),
        ("discover ioi --seed 99999999999999999999", 2),
        ("discover ioi --agent best", 1),
        ("discover ioi --policy policy", 1),
        ("adapt ioi", 2),
        ("adapt ioi --policy policy --iterations 0", 2),
        ("adapt ioi --policy policy --seconds -1", 2),
        ("adapt ioi --policy policy --envs 30", 1),
        ("curves out", 1),
        ("train --k 0", 2),
        ("train --envs 5", 1),
        ("reproduce --agent planner", 1),
        ("train --prefilter best", 1),
        ("train --behaviours ,", 1),
        ("train --behaviours ioi,ioi", 1),
        ("validate circuit.json --random 0", 2),
        ("compare --tau 7", 2),
        ("compare --methods guess", 1),
        ("compare --targets moon", 1),
        ("compare --seeds 0,x", 1),
        ("compare --jobs 0", 2),
        ("compare --seconds soon", 2),
        ("reproduce --seeds -1", 1),
        ("reproduce --methods guess", 1),
        ("reproduce --report-only --out out", 1),
        ("export circuit.json", 1),
        ("export circuit.json circuit.json --eap-ig out.json", 1),
        (
            "view circuit.json circuit.json circuit.json circuit.json circuit.json circuit.json circuit.json",
            1,
        ),
        ("view circuit.json --model toy --no-model", 1),
        ("view", 2),
        ("behaviours --pairs 0", 2),
        ("bench engine --repeats 0", 2),
        ("bench engine --circuits 1,x", 1),
        ("bench engine --circuits 0", 1),
        ("bench nothing", 2),
        ("models --nope", 2),
        ("serch", 2),
    ],
)
def test_out_of_range_or_not_understood(
    arguments: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, arguments.split(), "", code)
    assert code == 1 or "--help`" in line


# ---- where nothing can be written -----------------------------------------------------------------------------------


@every(WRITERS | WORKSHOPS)
def test_a_file_where_a_folder_should_be(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, with_(command, "a-file/below"), "a-file is not a folder")


@every(WRITERS | WORKSHOPS)
def test_a_read_only_folder(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the operating system's answer is simulated."""
    Path("locked").mkdir(mode=0o500)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked" and may(path, mode))
    refused(capsys, with_(command, "locked/below"), "(locked is read-only); choose another place")


@every(WRITERS | WORKSHOPS)
def test_a_file_system_that_turns_out_to_be_read_only(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(path: object, mode: int = 0o777, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setenv("MECHRL_CACHE", os.devnull)
    monkeypatch.setattr(os, "mkdir", mkdir)
    refused(capsys, with_(command, "out"), "Read-only file system", lines=None)


@every({name: command for name, command in WRITERS.items() if name not in ("search", "discover-paper")})
def test_a_full_disk_is_found_at_once(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(capsys, with_(command, "out"), "No space left on device", lines=None)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """The operating system lets no file grow beyond a limit: longer ones are cut off in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@every({name: WRITERS[name] for name in ("export", "export-eap-ig")})
def test_files_that_are_cut_off(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    names = ("circuit.json", "page.html", "graph.json")
    for name in names:
        Path("out", name).write_text("what was there before")
    with room_for(1000):
        refused(capsys, with_(command, "out"), "File too large", lines=None)


def test_results_that_cannot_be_printed() -> None:
    command = [sys.executable, "-m", "mechrl.cli", "models", "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert (
        done.stderr
        == "mechrl: cannot read or write: No space left on device; make room, then repeat the command\n"
    )


# ---- whatever else --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "line", "code"),
    [
        (
            ZeroDivisionError("boom\nand more"),
            "mechrl: unexpected ZeroDivisionError: boom; a bug, please report it",
            1,
        ),
        (AssertionError(), "mechrl: unexpected AssertionError; a bug", 1),
        (MemoryError(), "mechrl: out of memory; take a smaller model", 1),
        (RuntimeError("CUDA out of memory. Tried to"), "mechrl: out of memory; take a smaller model", 1),
        (
            PermissionError(errno.EACCES, "Permission denied", f"x{ESCAPE}"),
            r"mechrl: x\x1b[31mred\x07\x9b2J\n: Permission denied;",
            1,
        ),
        (KeyboardInterrupt(), "mechrl: interrupted", 130),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "", 1),
    ],
)
def test_what_nobody_expected_is_one_line_too(
    raised: BaseException,
    line: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> None:
        raise raised

    monkeypatch.setattr("mechrl.models.catalogue", fails)
    assert cli.run(["models"]) == code
    said = capsys.readouterr().err
    assert said.strip().startswith(line) and said.strip().count("\n") == 0
    if line:
        assert cli.run(["--debug", "models"]) == code
        assert f"{type(raised).__name__}" in (said := capsys.readouterr().err) and "Traceback" in said


def test_names_from_files_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert plain("f ≥ 0.9 · naïve – 猫…") == "f ≥ 0.9 · naïve – 猫…"
    assert plain(f"{ESCAPE}\u202e\udc80") == r"\x1b[31mred\x07\x9b2J\n\u202e\udc80"
    answer(ESCAPE)
    say(ESCAPE)
    answer_table([ESCAPE, "b"], [[ESCAPE, "[bold]not markup[/bold]"]])
    with Live(ESCAPE, quiet=0) as live:
        live.show(ESCAPE)
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert text.count(r"\x1b[31mred\x07\x9b2J") >= 2 and text.replace("\n", "").isprintable()
    assert "[bold]not markup[/bold]" in printed.out


@every({name: CIRCUITS[name] for name in ("validate", "export")})
@pytest.mark.parametrize("field", ["model", "behaviour", "method"])
def test_nor_can_those_in_a_circuit(
    command: list[str], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = json.loads(Path("circuit.json").read_text())
    Path("circuit.json").write_text(json.dumps(known | {field: ESCAPE}))
    cli.run([*with_(command, "circuit.json"), "--device", "cpu"])
    printed = capsys.readouterr()
    assert (printed.out + printed.err).replace("\n", "").isprintable()
