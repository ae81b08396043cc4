// ---- details: the component -----------------------------------------------------------------------------------------------

const FIRST_ROWS = 14;

function showComponent() {
  const circuit = circuits[state.active], node = state.chosen === null ? null : circuit.byName.get(state.chosen);
  if (!node) return $("component").replaceChildren(...overview(circuit));
  const into = edgesOf(node.name, "into"), out = edgesOf(node.name, "out");
  const role = roleOf(node.name);
  const what = {
    head: `Attention head ${node.head} of layer ${node.layer}`,
    mlp: `MLP of layer ${node.layer}`,
    end: node.name === "input" ? "The token embeddings" : "The model's prediction",
  }[node.kind];
  const last = circuits.map((c) => c.byName.get(node.name)).map((n, i) => n && isOn(circuits[i], n));
  const having = LETTER.filter((_, i) => last[i]);
  const where = !several ? (last[0] ? "in the circuit" : "not in the circuit")
    : having.length === 0 ? (last.length > 2 ? "in no circuit" : "in neither circuit")
    : having.length === last.length ? (last.length > 2 ? "in all circuits" : "in both circuits")
    : having.length === 1 ? `in ${having[0]} only` : `in ${having.join(", ")}`;
  const parts = [el("h2", { class: "name" }, node.name), el("p", { class: "lead" }, `${what}, ${where}`)];
  parts.push(...noteFields(node.name));
  if (role) parts.push(el("p", { class: "role" }, role[0]), el("p", { class: "lead" }, `${role[1]}, confidence ${role[2]}`));
  const third = circuit.raw.scored
    ? ["Strongest score", live(circuit, [...node.into, ...node.out]).length ? strongest(circuit, node) : "–"]
    : ["Stays until", lasts(circuit, node)];
  const of = several ? `, ${LETTER.slice(0, circuits.length).join(" or ")}` : "";
  const figures = [[`Edges in${of}`, into.length], [`Edges out${of}`, out.length], third];
  parts.push(el("dl", { class: "figures" }, ...figures.map(([dt, dd]) => el("div", {}, el("dt", {}, dt), el("dd", {}, String(dd))))));
  if (node.kind === "head") parts.push(...attention(circuit, node));
  parts.push(...writesOf(circuit, node));
  if (into.length) parts.push(el("h3", {}, "Reads from"), edgeList(into, (e) => e.source.name));
  if (out.length) parts.push(el("h3", {}, "Is read by"), edgeList(out, (e) => e.port.name));
  if (!into.length && !out.length) {
    const ever = lasts(circuit, node) !== "never";
    parts.push(el("p", { class: "why" }, ever ? "Move the slider to the left to see its edges." : "No edge of it is in this file."));
  }
  $("component").replaceChildren(...parts);
}

function lasts(circuit, node) {
  const stop = Math.max(0, ...[...node.into, ...node.out].map((e) => e.stops));
  if (stop >= circuit.stops) return "the end";
  return stop ? plural(circuit.raw.stops.size[stop - 1], "edge") : "never";
}

/** The live edges of a component in all circuits shown, each once, with the circuits that have it. */
function edgesOf(name, side) {
  const found = new Map();
  for (const circuit of circuits) {
    const node = circuit.byName.get(name);
    for (const edge of node ? live(circuit, node[side]) : []) {
      const key = `${edge.source.name} ${edge.port.name}`;
      if (!found.has(key)) found.set(key, { edge, circuit, has: [] });
      found.get(key).has.push(circuit.index);
    }
  }
  return [...found.values()].sort((a, b) => b.edge.share - a.edge.share);
}

function edgeList(entries, label) {
  const items = entries.map(({ edge, circuit, has }) => {
    const goal = label(edge) === edge.source.name ? edge.source : edge.port.nodes[0];
    const point = (on) => () => { state.edge = on ? edge.id : null; for (const pane of panes) pane.emphasise(); };
    const kind = edge.port.kind;
    const inEach = LETTER.slice(0, circuits.length).map((letter, i) => el("i", { class: has.includes(i) ? "yes" : "" }, letter));
    const marks = el("span", { class: "marks", "aria-label": `in ${has.map((i) => LETTER[i]).join(" and ")}` }, ...inEach);
    const tag = el("span", { class: `tag ${kind}`, title: KINDS[kind] }, kind === "in" ? "→" : kind);
    const place = circuit.raw.scored ? `${valueOf(circuit, edge)} #${rankOf(circuit, edge)}` : valueOf(circuit, edge);
    const value = el("span", { class: "value", title: described(circuit, edge).join(", ") }, place);
    return el("li", {}, el("button", {
      type: "button", title: `${edge.source.name} → ${edge.port.name}`, onclick: () => { state.edge = null; choose(goal.name); },
      onpointerenter: point(true), onpointerleave: point(false), onfocus: point(true), onblur: point(false),
    }, tag, el("span", { class: "name" }, label(edge)), ...(several ? [marks] : []), meter(Math.max(0.02, edge.share)), value));
  });
  return el("ul", { class: several ? "list both" : "list" }, ...items);
}

function overview(circuit) {
  const rows = circuit.nodes.filter((n) => n.kind !== "end" && isOn(circuit, n)).map((node) => {
    const edges = live(circuit, [...node.into, ...node.out]);
    return { node, many: edges.length, weight: edges.reduce((sum, e) => sum + e.share, 0) };
  }).sort((a, b) => b.weight - a.weight);
  const peak = rows.length ? rows[0].weight : 1;
  const items = rows.slice(0, state.more ? rows.length : FIRST_ROWS).map(({ node, many, weight }) => {
    const role = roleOf(node.name);
    const edges = el("span", { class: "value" }, plural(many, "edge"));
    return el("li", {}, el("button", {
      type: "button", onclick: () => choose(node.name),
      onpointerenter: () => { state.hovered = node.name; for (const p of panes) p.emphasise(); },
      onpointerleave: () => { state.hovered = null; for (const p of panes) p.emphasise(); },
    }, el("span"), el("span", { class: "name", title: role && role[0] }, called(node.name)), meter(weight / peak), edges));
  });
  const lead = "Choose one in the picture or below, or press / to search. The arrow keys move from component to component.";
  const shown = rows.length > items.length ? `${items.length} of ${rows.length}` : `${rows.length}`;
  const title = several ? `Components of ${LETTER[circuit.index]}` : "Components";
  const more = rows.length > FIRST_ROWS && el("button", {
    type: "button", class: "more", onclick: () => { state.more = !state.more; showDetails(); },
  }, state.more ? "Show fewer" : `Show all ${rows.length}`);
  return [el("h2", {}, title), ...(several ? [switcher()] : []), el("p", { class: "lead" }, lead), ...noteLists(),
    el("h3", {}, `By the ${circuit.raw.scored ? "scores" : "number"} of their edges`, el("span", {}, shown)),
    el("ul", { class: "list" }, ...items), ...(more ? [more] : []), ...strongestEdges(circuit)];
}

/** The strongest edges of the circuit, in order. */
function strongestEdges(circuit) {
  if (!circuit.raw.scored) return [];
  const edges = live(circuit, circuit.edges).sort((a, b) => a.rank - b.rank).slice(0, FIRST_ROWS);
  const entries = edges.map((edge) => ({ edge, circuit, has: circuits.filter((c) => c.edges.some((e) => e.id === edge.id && isLive(c, e))).map((c) => c.index) }));
  return [el("h3", {}, "Strongest edges", el("span", {}, circuit.raw.scored_by)), edgeList(entries, (e) => `${e.source.name} → ${e.port.name}`)];
}
