// ---- search ---------------------------------------------------------------------------------------------------------------------

function startSearch() {
  const box = $("search"), list = $("results");
  const names = [...new Set(circuits.flatMap((c) => c.nodes.map((n) => n.name)))];
  let found = [], at = 0;

  /** Names that begin so; 9.9 stands for a9.h9; words are looked for in known roles. */
  function matches(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    const alias = /^(\d+)\.(\d*)$/.exec(wanted);
    const prefix = alias ? `a${alias[1]}.h${alias[2]}` : wanted;
    const inside = (name) => circuits.some((c) => c.byName.has(name) && isOn(c, c.byName.get(name)));
    return names
      .filter((name) => name.startsWith(prefix) || (wanted.length > 2 && (roleOf(name) || [""])[0].toLowerCase().includes(wanted)))
      .map((name) => ({ name, inside: inside(name) }))
      .sort((a, b) => (b.name === prefix) - (a.name === prefix) || b.inside - a.inside);
  }

  function show() {
    const all = matches(box.value);
    found = all.slice(0, 12);
    at = Math.min(at, Math.max(0, found.length - 1));
    list.hidden = !box.value.trim();
    box.setAttribute("aria-expanded", String(!list.hidden));
    list.replaceChildren(...found.map(({ name, inside }, i) => {
      const role = roleOf(name);
      const hint = [role && role[0], inside ? null : "not in the circuit"].filter(Boolean).join(", ");
      return el("li", {
        role: "option", id: `result-${i}`, "aria-selected": String(i === at),
        onpointerdown: (event) => { event.preventDefault(); pick(i); },
      }, el("span", { class: "name" }, name), el("span", {}, hint));
    }));
    if (!found.length) list.append(el("li", { class: "none" }, "No component has such a name"));
    if (found.length) box.setAttribute("aria-activedescendant", `result-${at}`);
    else box.removeAttribute("aria-activedescendant");
  }

  function close() {
    list.hidden = true;
    box.setAttribute("aria-expanded", "false");
    box.removeAttribute("aria-activedescendant");
  }

  function pick(i) {
    const { name } = found[i];
    const index = circuits.findIndex((c) => c.byName.has(name) && isOn(c, c.byName.get(name)));
    choose(name, index < 0 ? state.active : index);
    const pane = panes[state.active];
    pane.roving(name);
    pane.buttons.get(name).scrollIntoView({ block: "nearest" });
    close();
  }

  box.addEventListener("input", () => { at = 0; show(); });
  box.addEventListener("focus", () => { box.select(); if (box.value) show(); });
  box.addEventListener("blur", close);
  box.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = (at + (event.key === "ArrowDown" ? 1 : -1) + found.length) % Math.max(1, found.length);
      show();
    } else if (event.key === "Enter" && found.length && !list.hidden) pick(at);
    else if (event.key === "Escape") { event.stopPropagation(); box.value = ""; close(); box.blur(); }
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input[type=text]");
    if (event.key === "/" && !typing) { event.preventDefault(); box.focus(); }
    if (event.key === "Escape" && !typing) choose(null);
  });
}
