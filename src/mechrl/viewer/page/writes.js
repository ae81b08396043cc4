// ---- what components write to the logits ---------------------------------------------------------------------------------------

const signed = (x) => (Math.abs(x) < 0.005 ? "" : x < 0 ? "−" : "+") + Math.abs(x).toFixed(2);
const pairOf = (circuit) => circuit.raw.pairs[Math.min(state.pair, circuit.raw.pairs.length - 1)];
const few = (tokens) => tokens.map((token) => `“${visible(token)}”`).join(", ");

/** Of one component on the chosen prompt: how far it pushes the answer above the foil, and which tokens it raises. */
function writesOf(circuit, node) {
  const pair = pairOf(circuit), index = circuit.nodes.indexOf(node);
  if (!pair || node.name === "logits") return [];
  const { model, circuit: ours, raises } = pair.writes, here = ours[index];
  const lines = [here === undefined
    ? `The circuit has no edge from it to the logits; in the model it pushes the answer ${signed(model[index])} against the foil.`
    : `Pushes the answer ${signed(here)} against the foil; in the whole model ${signed(model[index])}.`];
  if (raises[index]) lines.push(`Raises most: ${few(raises[index])}.`);
  return [el("h3", {}, "Writes to the logits", pairPicker(circuit, "Prompt of the writes")),
    el("div", { class: "writes" }, ...lines.map((line) => el("p", {}, line)))];
}

/** Those of the final circuit that push most, on the chosen prompt. */
function pushers(circuit, pair) {
  const rows = Object.entries(pair.writes.circuit).map(([index, push]) => ({ node: circuit.nodes[index], push }))
    .sort((a, b) => Math.abs(b.push) - Math.abs(a.push)).slice(0, FIRST_ROWS);
  if (!rows.length) return [];
  const items = rows.map(({ node, push }) => el("li", {}, el("button", { type: "button", onclick: () => choose(node.name) },
    el("span"), el("span", { class: "name" }, called(node.name)), meter(Math.abs(push / rows[0].push)), el("span", { class: "value" }, signed(push)))));
  return [el("h3", {}, "What pushes the answer against the foil", el("span", {}, "logits")), el("ul", { class: "list pushers" }, ...items)];
}
