// ---- pointing and choosing ---------------------------------------------------------------------------------------------

function tip(x, y, title, lines) {
  const box = $("tip");
  box.hidden = title === undefined;
  if (box.hidden) return;
  box.replaceChildren(el("b", {}, title), ...lines.map((line) => el("div", {}, line)));
  const width = box.offsetWidth, height = box.offsetHeight;
  box.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  box.style.top = `${y + 18 + height > innerHeight ? y - height - 12 : y + 18}px`;
}

function hover(name, pane) {
  state.hovered = name;
  state.edge = null;
  for (const each of panes) each.emphasise();
  if (name === null) return tip();
  const { circuit } = pane, node = circuit.byName.get(name), role = roleOf(name);
  const lines = role ? [role[0]] : [];
  if (notes.names.has(name)) lines.push(notes.names.get(name));
  lines.push(counts(circuit, node));
  if (circuit.raw.scored && isOn(circuit, node)) lines.push(`strongest ${strongest(circuit, node)}`);
  const box = pane.buttons.get(name).getBoundingClientRect();
  tip(box.right - 8, box.bottom - 10, name, lines);
}

/** An edge in words: its value and its place among those that are there. */
function described(circuit, edge) {
  const place = `number ${rankOf(circuit, edge)} of ${number(circuit.raw.stops.live[circuit.stop])}`;
  return circuit.raw.scored ? [`${circuit.raw.scored_by} ${valueOf(circuit, edge)}`, place] : [valueOf(circuit, edge)];
}

function strongest(circuit, node) {
  return valueOf(circuit, live(circuit, [...node.into, ...node.out]).reduce((a, b) => (b.share > a.share ? b : a)));
}

function choose(name, index = state.active) {
  state.chosen = name;
  state.active = index;
  for (const pane of panes) pane.emphasise();
  if (name !== null) openTab("component");
  showDetails();
}
