// ---- details: prompts and provenance ------------------------------------------------------------------------------------------

function showPrompts() {
  const circuit = circuits[state.active], { pairs, notes } = circuit.raw;
  const parts = [el("h2", {}, "Prompt pairs")];
  if (several) parts.push(switcher());
  if (!pairs.length) {
    parts.push(...notes.map((note) => el("p", { class: "why" }, note)));
    return $("prompts").replaceChildren(...parts);
  }
  const pair = pairOf(circuit);
  const marked = (tokens, others) => tokens.map((token, i) => (token === others[i] ? token : word(token))).slice(pair.opening);
  const word = (token) => el("span", {}, /^\s*/.exec(token)[0], el("mark", {}, token.trimStart()));
  parts.push(el("h3", {}, "Pair", pairPicker(circuit, "Pair")));
  const prompt = (title, tokens, others) => [el("dt", {}, title), el("dd", {}, ...marked(tokens, others))];
  const prompts = [...prompt("Clean", pair.clean, pair.corrupt), ...prompt("Corrupted", pair.corrupt, pair.clean)];
  parts.push(el("dl", { class: "prompt" }, ...prompts));
  const size = circuit.raw.stops.live[circuit.stop];
  const tables = [
    ["The model on the clean prompt", pair.top.clean],
    ["The model on the corrupted prompt", pair.top.corrupt],
    [`The circuit of ${plural(size, "edge")}`, pair.top.circuit[circuit.stop]],
  ];
  for (const [title, top] of tables) parts.push(el("h3", {}, title), answers(top, pair));
  parts.push(...pushers(circuit, pair));
  const some = (list) => {
    const first = few(list.slice(0, 6));
    return list.length > 6 ? `${first} and ${list.length - 6} more` : first;
  };
  parts.push(el("p", { class: "why" }, `Right: ${some(pair.answers)}. Foils: ${some(pair.foils)}.`));
  $("prompts").replaceChildren(...parts);
}

function answers(top, pair) {
  return el("table", { class: "answers" }, el("tbody", {}, ...top.map(([token, p]) => {
    const kind = pair.answers.includes(token) ? "right" : pair.foils.includes(token) ? "wrong" : "";
    const word = { right: "a right answer", wrong: "a foil", "": undefined }[kind];
    const cells = [visible(token), meter(p), p < 0.0005 ? "0" : p.toFixed(3)];
    return el("tr", { class: kind, title: word }, ...cells.map((cell) => el("td", {}, cell)));
  })));
}


function showAbout() {
  const circuit = circuits[state.active], { facts, settings, known, notes } = circuit.raw;
  const parts = [el("h2", {}, circuit.raw.name)];
  if (several) parts.push(switcher());
  if (comparable) {
    const on = circuits.map((c) => new Set(c.nodes.filter((n) => n.kind !== "end" && isOn(c, n)).map((n) => n.name)));
    const overlap = (sets) => {
      const all = new Set(sets.flatMap((set) => [...set])).size, common = [...sets[0]].filter((x) => sets.every((set) => set.has(x))).length;
      return `${number(common)} of ${number(all)} (Jaccard ${all ? (common / all).toFixed(2) : "–"})`;
    };
    const rows = [["edges", overlap(shared.sets)], ["components", overlap(on)]];
    shared.only.forEach((n, i) => rows.push([`only in ${LETTER[i]}`, plural(n, "edge")]));
    if (circuits.length > 2) {
      shared.sets.forEach((a, i) => shared.sets.slice(i + 1).forEach((b, j) => rows.push([`${LETTER[i]} and ${LETTER[i + j + 1]}`, overlap([a, b])])));
    }
    parts.push(el("h3", {}, circuits.length > 2 ? "What they share" : "What the two share"), table(rows));
  } else if (several) parts.push(el("p", { class: "why" }, "The models have different shapes, so their edges cannot be compared."));
  parts.push(el("h3", {}, "Where it came from"), table(facts));
  const roles = Object.entries(known);
  if (roles.length) {
    const found = roles.filter(([name]) => isOn(circuit, circuit.byName.get(name)));
    parts.push(el("h3", {}, "Components found by hand", el("span", {}, `${found.length} of ${roles.length} here`)));
    const here = (name) => (isOn(circuit, circuit.byName.get(name)) ? "here" : "not here");
    const row = ([name, [role]]) => [el("span", { class: "name" }, name), role, here(name)];
    parts.push(table(roles.map(row), "facts roles"));
  }
  if (settings.length) parts.push(el("h3", {}, "Settings of the search"), table(settings));
  parts.push(...notes.map((note) => el("p", { class: "why" }, note)));
  $("about").replaceChildren(...parts);
}

function table(rows, kind = "facts") {
  const line = ([key, ...cells]) => el("tr", {}, el("th", { scope: "row" }, key), ...cells.map((cell) => el("td", {}, cell)));
  return el("table", { class: kind }, el("tbody", {}, ...rows.map(line)));
}
