"""Circuits and agents make a round trip to the hub, with the hub library itself and a hub in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import mechrl
from mechrl import hub
from mechrl.agents.paper.checkpoint import save_policy
from mechrl.agents.paper.policy import Policy
from mechrl.agents.planner.shipped import FOLDER, load_planner
from mechrl.circuit import Circuit
from mechrl.cli import app as cli
from mechrl.errors import MechRLError
from tests.hub_server import TOKEN, Hub, running
from tests.viewer.circuits import GPT2, random_circuit


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    with running() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def test_a_circuit_goes_and_comes_back_as_it_was(there: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (random_circuit(GPT2, 60, nodes=12, seed=seed, model="gpt2") for seed in (1, 2))
    first = one.push_to_hub("me/ioi")
    assert first == f"hf:me/ioi@{there.oid('me/ioi', 0)}" and set(there.commits["me/ioi"][0]) == {
        "circuit.json",
        "README.md",
    }
    assert Circuit.load("hf:me/ioi").to_json() == one.to_json()
    two.push_to_hub("me/ioi", private=True)
    assert (
        Circuit.load("hf:me/ioi").to_json() == two.to_json() != Circuit.load(first).to_json() == one.to_json()
    )
    assert cli.run(["export", first, "--no-model", "--eap-ig", "graph.json"]) == 0
    Path("graph.json").unlink()


def test_the_card_says_what_the_circuit_says(there: Hub) -> None:
    circuit = random_circuit(GPT2, 60, nodes=12, model="gpt2", faithfulness=0.91, faithfulness_test=0.87)
    circuit.push_to_hub("me/ioi")
    card = there.commits["me/ioi"][0]["README.md"].decode()
    assert card.startswith("---\nlibrary_name: mechrl\nbase_model: openai-community/gpt2\ntags:\n- ")
    assert (
        f"\n{circuit.size:,} of {GPT2.n_edges:,} edges" in card
        and "| 0.870 |" in card
        and "| 0.910 |" in card
    )
    assert 'Circuit.load("hf:me/ioi")' in card and "{" not in card


def test_a_planner_goes_comes_back_and_finds_the_same_circuit(there: Hub) -> None:
    address = hub.push_agent(FOLDER / "toy", "me/planner")
    assert "planner" in there.commits["me/planner"][0]["README.md"].decode()
    weights, same = load_planner(address).state_dict(), load_planner(FOLDER / "toy").state_dict()
    assert weights.keys() == same.keys() and all((weights[key] == same[key]).all() for key in same)
    model, behaviour = mechrl.load_model("toy"), mechrl.behaviour("ioi")
    small = dict(pairs=4, budget=30)
    here, fetched = (mechrl.discover(model, behaviour, planner=given, **small) for given in (None, address))
    assert here.to_json() | {"seconds": 0} == fetched.to_json() | {"seconds": 0}


def test_a_policy_goes_comes_back_and_is_deployed(
    there: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    save_policy(Policy(16), folder)
    (folder / "card.md").write_text("# Mine\n")
    (folder / "secret.txt").write_text("s")
    address = hub.push_agent(folder, "me/policy")
    files = there.commits["me/policy"][0]
    assert set(files) == {"model.safetensors", "config.json", "README.md"}
    assert (
        b"# Mine\n" in files["README.md"]
        and b'behaviour, "paper", policy="hf:me/policy")' in files["README.md"]
    )
    assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    found = []
    for given in (str(folder), address):
        command = [
            "discover",
            "ioi",
            "--agent",
            "paper",
            "--policy",
            given,
            "--pairs",
            "2",
            "--device",
            "cpu",
        ]
        assert cli.run([*command, "--budget", "20", "--out", str(tmp_path / "out"), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["edges"] == found[1]["edges"]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("hf:me/nothing", "neither a local file nor a public repository on the hub"),
        ("hf:me/ioi@" + "0" * 40, "has no revision"),
        ("hf:me", "write hf:owner/name"),
        ("hf:me/ioi/../x", "write hf:owner/name"),
        ("hf:", "write hf:owner/name"),
    ],
)
def test_what_is_not_there_is_one_line(there: Hub, address: str, said: str) -> None:
    random_circuit(GPT2, 60, nodes=12).push_to_hub("me/ioi")
    with pytest.raises(MechRLError, match=said) as refused:
        Circuit.load(address)
    assert "\n" not in str(refused.value)


def test_what_cannot_be_written_is_one_line(
    there: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    circuit = random_circuit(GPT2, 60, nodes=12)
    for repo, said in (("me/a b", "write owner/name"), ("a/b/c", "write owner/name")):
        with pytest.raises(MechRLError, match=said):
            circuit.push_to_hub(repo)
    with pytest.raises(MechRLError, match="safetensors is missing"):
        hub.push_agent(tmp_path, "me/planner")
    monkeypatch.setenv("HF_TOKEN", "hf_" + "y" * 34)
    with pytest.raises(MechRLError, match="hf auth login"):
        circuit.push_to_hub("me/ioi")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # no server answers there
    with pytest.raises(MechRLError, match="cannot be reached"):
        circuit.push_to_hub("me/ioi")
