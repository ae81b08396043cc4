"""Writes tour.ipynb and runs it: `pip install nbformat nbclient ipykernel ipywidgets`, then `python docs/make_tour.py`."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

HERE = Path(__file__).parent

CELLS = [
    """# A tour of MechRL

A *behaviour* is something a language model does. Its *circuit* is the small part of the model that does it. This notebook finds
circuits in `toy`, the model that comes with the package, on a CPU. [concepts.md](concepts.md) says what the words mean.""",
    "Load a model: a graph of attention heads and MLPs.",
    """import mechrl

model = mechrl.load_model("toy")
print(f"{model.graph.n_nodes} nodes, {model.graph.n_edges:,} edges")""",
    "Choose a behaviour. It consists of pairs: a clean prompt, and a corrupted one of equal length that changes the answer.",
    """behaviour = mechrl.behaviour("ioi")
pairs = behaviour.pairs(model.tokenizer, 20)
for clean, corrupt in pairs.texts[:2]:
    print("clean    ", clean)
    print("corrupted", corrupt)""",
    "Does the model do it at all? Accuracy and KL_cut (how far corruption moves the prediction, in nats) on fresh pairs.",
    """verdict = mechrl.judge(model, behaviour)
print(f"accuracy {verdict.accuracy:.2f}, KL_cut {verdict.kl_cut:.1f}: {'exhibited' if verdict.exhibited else verdict.reason}")""",
    """Let the planner find the circuit: it has learned what cutting and adding edges does, tries what it believes in, and stops when
nothing is left to try. Faithfulness f is 1 for the whole model and 0 for the empty circuit; here it must reach τ on fresh pairs.""",
    """circuit = mechrl.discover(model, behaviour, tau=0.9)
print(f"{len(circuit)} of {circuit.graph.n_edges:,} edges after {circuit.passes:,.0f} passes")
print(f"f = {circuit.faithfulness:.3f} on its own pairs, {circuit.faithfulness_test:.3f} on fresh ones")""",
    "Is it real? Without the circuit the behaviour should be gone; random circuits of the same size should not show it.",
    """validity = mechrl.validate(circuit, model, behaviour)
print(f"f without the circuit {validity.necessity:.3f}, without as many random candidates {validity.necessity_random.text()}")
for control in validity.specificity:
    print(f"f of random circuits from the {control.drawn_from}, same {control.matched} size: {control.f.text()}")
for other in validity.variants:
    print(f"f on fresh pairs of {other.behaviour}: {other.f:.3f}")""",
    """Look at it: layers from bottom to top, q, k and v edges told apart, a slider that replays the removal. `circuit` alone, as the
last line of a cell, shows the same without what needs the model. (If the frame is empty, trust the notebook or run it.)""",
    "mechrl.show(circuit, model, behaviour)",
    """Your own behaviour is a file: `clean`, `corrupt`, `answer`, `foil` on every line. This one keeps both names and changes only who
gives, so that its circuit holds what tells the two names apart, and not what knows that there are names.""",
    """from pathlib import Path

file = Path("examples/who-gave.jsonl")
print(file.read_text().splitlines()[0])
mine = mechrl.behaviour(file)
print(f"accuracy {mechrl.judge(model, mine).accuracy:.2f}")
small = mechrl.discover(model, mine, "blockwise")  # a search that starts from nothing, for comparison
small""",
    """Which edges do the two circuits share?""",
    """shared = circuit.mask & small.mask
print(f"{int(shared.sum())} of {len(small)}:", *[model.graph.edge_name(e) for e in shared.nonzero()[0]], sep="\\n  ")""",
    "Keep it. `mechrl view`, `mechrl validate` and `mechrl export` take the file.",
    """import tempfile

path = Path(tempfile.mkdtemp()) / "circuit.json"
small.save(path)
assert mechrl.Circuit.load(path).edges == small.edges""",
]


def main() -> None:
    cells = [
        new_code_cell(text) if i >= 2 and i % 2 == 0 else new_markdown_cell(text)
        for i, text in enumerate(CELLS)
    ]
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
    notebook = new_notebook(cells=cells)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(HERE)}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}  # when each cell ran
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    nbformat.validate(notebook)
    nbformat.write(notebook, HERE / "tour.ipynb")


if __name__ == "__main__":
    main()
