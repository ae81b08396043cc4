"""The command line as users see it: real processes, exit codes, one-line errors, and only JSON on stdout."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from mechrl.behaviours import behaviours
from mechrl.cli import app as cli
from tests.agents.paper.small import shrink

COMMANDS = [
    "models",
    "behaviours",
    "check",
    "discover",
    "adapt",
    "search",
    "validate",
    "metrics",
    "compare",
    "reproduce",
    "train",
    "curves",
    "export",
]
COMMANDS += ["view", "bench", "planner"]
SHARED = [
    "--device",
    "--seed",
    "--json",
    "--tau",
    "--resume",
    "--jobs",
    "--envs",
    "--bos",
]


def mechrl(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mechrl.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def every_command(group=None, path: str = "mechrl") -> dict:
    """A command by its full name, as typer built it."""
    found = {}
    for name, command in (group or get_command(cli.app)).commands.items():
        full = f"{path} {name}"
        found |= every_command(command, full) if hasattr(command, "commands") else {full: command}
    return found


def test_help_is_quick():
    """Half a second of CPU time on any machine, and no heavy import; wall time says little on shared machines."""
    mechrl("--help")  # compile once
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = mechrl("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and all(f" {command} " in done.stdout for command in COMMANDS)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
    heavy = "import sys, mechrl.cli.app; print({'torch', 'numpy', 'transformers', 'rich.progress'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True).stdout
        == "set()\n"
    )


def test_the_commands_are_those_of_the_documentation():
    assert list(get_command(cli.app).commands) == COMMANDS


@pytest.mark.parametrize("name", every_command())
def test_help_helps(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = every_command()[name]
    examples = re.findall(r"- `(mechrl [^`]+)`", command.help)
    assert examples and all(example.startswith(name) for example in examples)
    for example in examples:  # every example parses; its effect is tested elsewhere
        command.make_context(name, shlex.split(example)[len(name.split()) :])
    for parameter in command.params:
        assert parameter.help, parameter.name
        for option in parameter.opts + parameter.secondary_opts:
            if parameter.param_type_name == "option":
                assert re.fullmatch(r"-[a-z]|--[a-z0-9]+(-[a-z0-9]+)*", option)
    assert cli.run([*name.split()[1:], "--help"]) == 0
    shown = capsys.readouterr()
    assert "Examples:" in shown.out and shown.err == ""
    assert not re.search(r"int range|--json +<bool>|<=\d{5}", shown.out)


@pytest.mark.parametrize("option", SHARED)
def test_the_same_option_is_the_same_everywhere(option: str) -> None:
    found = [p for command in every_command().values() for p in command.params if option in p.opts]
    assert len(found) > 1 and len({(p.help, p.default, p.opts[-1]) for p in found}) == 1


def test_no_command_is_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["bench"]):
        assert cli.run(arguments) == 2
        shown = capsys.readouterr()
        assert "Usage: mechrl" in shown.out + shown.err and "mechrl: " not in shown.err


def answer(capsys: pytest.CaptureFixture[str], *arguments: str):
    """A command's JSON output, in this process; nothing else may be on stdout."""
    assert cli.run([*arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_models_lists_the_embedded_one(capsys: pytest.CaptureFixture[str]) -> None:
    models = {row["name"]: row for row in answer(capsys, "models")}
    assert {"toy", "smollm2", "gpt2"} <= set(models) and 1e6 < models["toy"]["bytes"] < 1e7
    assert all(row["cached"] == (row["bytes"] > 0) for row in models.values())
    assert cli.run(["models"]) == 0
    assert "smollm2" in capsys.readouterr().out


def test_behaviours_are_listed_without_a_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mechrl.models.load_model", None)
    known = {row["name"]: row for row in answer(capsys, "behaviours", "--list")}
    assert len(known) == len(behaviours()) and "names the indirect object" in known["ioi"]["description"]
    assert cli.run(["behaviours", "--list", "-b", "docs/examples/who-gave.jsonl"]) == 0
    assert "who-gave" in capsys.readouterr().out


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--debug", "behaviours", "-b", "missing.jsonl"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said and said.splitlines()[-1] == "mechrl: missing.jsonl: no such file"


def test_the_gate_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "behaviours", "--model", "toy", "--pairs", "8")
    assert {"name", "family", "split", "accuracy", "kl_cut", "exhibited"} <= set(rows[0])
    assert [row["name"] for row in rows[:2]] == ["ioi", "ioi-2"]


def test_the_gate_on_a_users_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.jsonl"
    rows = [
        {"clean": f"When {a} and {b} went to the store, {b} gave a book to"}
        | {"corrupt": f"When {c} and {b} went to the store, {a} gave a book to"}
        | {"answer": f" {a}", "foil": f" {b}", "part": "test"}
        for a, b, c in [("John", "Mary", "Paul"), ("Mary", "John", "Anna"), ("Paul", "Anna", "John")]
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert answer(capsys, "behaviours", "-b", str(path))[0]["pairs"] == 3


def test_the_benchmark_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, "bench", "engine", "--model", "toy", "--circuits", "2", "--repeats", "1")
    assert result["yardstick_ms"] > 0 and result["peak_memory_mb"] > 0
    assert {"edges", "circuits", "ms_per_circuit", "circuits_per_second"} <= set(result["rows"][0])


def test_a_terminal_that_knows_ascii_only():
    done = mechrl("behaviours", "-b", "ioi", "--pairs", "4", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "exhibited by toy: accuracy \\u2265 0.8" in done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(number: int, tmp_path: Path) -> None:
    search = ["search", "top-n", "ioi", "--pairs", "4", "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert cli.run(search) == 0
    before = list((tmp_path / "out").iterdir())
    arguments = ["validate", str(tmp_path / "out" / "circuit.json"), "--random", "5000", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "mechrl.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None and process.stderr.readline().startswith("validate: ")
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + number and stdout == "" and "Traceback" not in stderr
    assert ("mechrl: interrupted" in stderr) == (number == signal.SIGINT)
    assert list((tmp_path / "out").iterdir()) == before


def test_a_bar_on_a_terminal_and_json_beside_it(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "mechrl.cli",
        "search",
        "top-n",
        "ioi",
        "--pairs",
        "4",
        "--out",
        str(tmp_path),
        "--json",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=os.environ | {"TERM": "xterm-256color"}
    )
    os.close(theirs)
    drawn = b""
    while True:  # until the last process that holds the other end has exited
        try:
            drawn += os.read(ours, 4096)
        except OSError:
            break
    os.close(ours)
    assert process.stdout is not None
    with process.stdout as stdout:
        printed = json.loads(stdout.read())
    assert process.wait(timeout=60) == 0
    assert printed["circuit"] == str(tmp_path / "circuit.json")
    assert b"top-n" in drawn and "━".encode() in drawn
    assert drawn.count(b"\x1b[?25h") == drawn.count(b"\x1b[?25l") > 0  # the cursor is visible again


def test_json_of_training_and_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MECHRL_CACHE", str(tmp_path / "cache"))
    shrink(monkeypatch)
    small = ["--envs", "2", "--iterations", "2", "--device", "cpu", "--force", "--json", "--out"]
    train = ["train", "--behaviours", "ioi", "--k", "20", *small, str(tmp_path / "train")]
    for more, iterations in (["--seconds", "0"], 1), (["--resume"], 2):
        assert cli.run([*train, *more]) == 0
        state = json.loads(capsys.readouterr().out)
        assert state["folder"] == str(tmp_path / "train") and state["passes"] > 0
        assert (state["iterations"], state["finished"]) == (iterations, iterations == 2)
    adapt = ["adapt", "ioi", *small, str(tmp_path / "adapt"), "--policy", str(tmp_path / "train")]
    assert cli.run([*adapt, "--seconds", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"] is False
    assert cli.run([*adapt, "--resume"]) == 0
    circuit = json.loads(capsys.readouterr().out)["circuit"]
    files = {"eap_ig": str(tmp_path / "graph.json"), "html": str(tmp_path / "page.html")}
    assert (
        cli.run(
            ["export", circuit, "--html", files["html"], "--eap-ig", files["eap_ig"], "--no-model", "--json"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out) == files and all(
        Path(path).stat().st_size for path in files.values()
    )


@pytest.mark.parametrize("command", [["compare", "--methods", "greedy"], ["reproduce", "--quick"]])
def test_json_of_work_that_had_no_time(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        answer(capsys, *command, "--seconds", "0", "--device", "cpu", "--out", str(tmp_path))["finished"]
        is False
    )
