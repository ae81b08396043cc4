// ---- state ---------------------------------------------------------------------------------------------------------

const state = { chosen: null, hovered: null, edge: null, active: 0, pair: 0, run: "circuit", filter: "all" };
const shared = { ids: new Set() }; // edges that all circuits have now
const panes = [];
const colours = {};

function readColours() {
  const probe = el("i");
  document.body.append(probe);
  for (const name of ["q", "k", "v", "in", "text", "muted", "line", "accent", "surface", "faint"]) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
}

function compare() {
  if (!comparable) return;
  const ids = circuits.map((c) => new Set(live(c, c.edges).map((e) => e.id)));
  shared.ids = new Set([...ids[0]].filter((id) => ids.every((mine) => mine.has(id))));
  shared.sets = ids;
  shared.only = ids.map((mine) => [...mine].filter((id) => ids.every((other) => other === mine || !other.has(id))).length);
  for (const pane of panes) pane.showShared();
}
