// ---- the address says what is shown -----------------------------------------------------------------------------------------

let restoring = false;

/** Everything that a reader has chosen, as the part of the address after #. Defaults are left out. */
function linkText() {
  const said = new URLSearchParams();
  const say = (key, value, usual) => { if (String(value) !== String(usual)) said.set(key, value); };
  say("c", state.chosen ?? "", "");
  say("of", state.active, 0);
  say("tab", openNow, "component");
  say("pair", state.pair, 0);
  say("run", state.run, "circuit");
  say("show", state.filter, "all");
  say("theme", state.theme ?? "", "");
  say("stop", circuits.map((c) => c.stop), circuits.map((c) => c.stops - 1));
  say("top", panes.map((p) => p.threshold.range.value), panes.map((p) => p.threshold.steps));
  if (anyNotes()) said.set("notes", JSON.stringify(writtenNotes()));
  return said.toString();
}

function syncLink() {
  if (restoring) return;
  const text = linkText();
  if (text === location.hash.slice(1)) return;
  try {
    history.replaceState(null, "", `#${text}`);
  } catch {
    // in a notebook's frame there is no address to change
  }
}

/** What an address says is shown; what it says wrongly is left as it is. */
function followLink() {
  const said = new URLSearchParams(location.hash.slice(1));
  const among = (key, values) => (values.includes(said.get(key)) ? said.get(key) : null);
  const whole = (text, most) => { const n = Number(text); return Number.isInteger(n) && n >= 0 && n <= most ? n : null; };
  restoring = true;
  try {
    if (said.has("notes")) readNotes(checkedNotes(said.get("notes")));
    const stops = (said.get("stop") || "").split(","), tops = (said.get("top") || "").split(",");
    panes.forEach((pane, i) => {
      const stop = stops[i] ? whole(stops[i], pane.circuit.stops - 1) : null, top = tops[i] ? whole(tops[i], pane.threshold.steps) : null;
      if (top !== null) pane.threshold.set(top);
      if (stop !== null) pane.replay.go(stop);
    });
    state.pair = whole(said.get("pair") ?? 0, Math.max(0, ...circuits.map((c) => c.raw.pairs.length - 1))) ?? 0;
    state.run = among("run", Object.keys(RUNS)) ?? "circuit";
    state.filter = among("show", ["all", "shared", "own"]) ?? "all";
    if (comparable) showFilter();
    if (among("theme", ["light", "dark"])) setTheme(said.get("theme"));
    const index = whole(said.get("of") ?? 0, circuits.length - 1) ?? 0, name = said.get("c");
    choose(name !== null && circuits[index].byName.has(name) ? name : null, index);
    openTab(among("tab", Object.keys(TABS)) ?? "component");
    for (const pane of panes) pane.draw();
  } finally {
    restoring = false;
  }
  showDetails();
}

/** Notes from an address: only texts for components that there are. */
function checkedNotes(text) {
  let told;
  try {
    told = JSON.parse(text);
  } catch {
    return {};
  }
  const there = (name) => circuits.some((c) => c.byName.has(name));
  const texts = (map) => Object.fromEntries(Object.entries(map ?? {}).filter(([name, value]) => there(name) && typeof value === "string"));
  return { pins: (Array.isArray(told?.pins) ? told.pins : []).filter(there), names: texts(told?.names), groups: texts(told?.groups) };
}
