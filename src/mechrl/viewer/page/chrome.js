// ---- light and dark, legend, filter --------------------------------------------------------------------------------------------------

function recolour() {
  readColours();
  for (const pane of panes) pane.draw();
  showDetails();
}

function setTheme(theme) {
  state.theme = theme;
  document.documentElement.style.colorScheme = theme ?? "";
  recolour();
}

function startTheme() {
  const button = $("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const moon = "M13.2 9.9A5.6 5.6 0 0 1 6.1 2.8 5.6 5.6 0 1 0 13.2 9.9z";
  button.append(icon({ d: moon, fill: "none", stroke: "currentColor", "stroke-width": 1.4, "stroke-linejoin": "round" }));
  button.addEventListener("click", () => setTheme((state.theme ?? (system.matches ? "dark" : "light")) === "dark" ? "light" : "dark"));
  system.addEventListener("change", recolour);
}

function startLegend() {
  for (const [kind, word] of Object.entries(KINDS)) {
    const line = el("line", {
      x1: 0, x2: 26, y1: 4, y2: 4, stroke: `var(--${kind})`, "stroke-width": 2,
      "stroke-dasharray": DASH[kind].join(" "), "stroke-linecap": kind === "v" ? "round" : "butt",
    });
    document.querySelector(".legend").append(el("li", {}, el("svg", { width: 26, height: 8, "aria-hidden": "true" }, line), word));
  }
  const scored = new Set(CIRCUITS.map((c) => c.scored));
  const thicker = scored.size > 1 ? "more important" : scored.has(true) ? "higher score" : "removed later";
  document.querySelector(".legend").append(el("li", { class: "long" }, `thicker: ${thicker}`));
  if (CIRCUITS.some((c) => Object.keys(c.known).length)) {
    const dot = el("circle", { cx: 4, cy: 4, r: 3.5, fill: "var(--known)" });
    document.querySelector(".legend").append(el("li", {}, el("svg", { width: 8, height: 8, "aria-hidden": "true" }, dot), "found by hand"));
  }
}

function showFilter() {
  const box = segments("Edges shown", { all: "All", shared: "Shared", own: "Differences" }, state.filter, (key) => keepFocus(() => {
    state.filter = key;
    showFilter();
    for (const pane of panes) pane.draw();
    syncLink();
  }));
  box.id = "filter";
  $("filter").replaceWith(box);
}
