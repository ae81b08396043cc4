// ---- what the reader says of components: pins, names, groups --------------------------------------------------------------

const notes = { pins: new Set(), names: new Map(), groups: new Map() }; // component -> name, component -> group

function readNotes(from) {
  for (const name of from.pins || []) notes.pins.add(name);
  for (const [name, text] of Object.entries(from.names || {})) notes.names.set(name, text);
  for (const [name, group] of Object.entries(from.groups || {})) notes.groups.set(name, group);
}

const writtenNotes = () => ({
  pins: [...notes.pins], names: Object.fromEntries(notes.names), groups: Object.fromEntries(notes.groups),
});
const anyNotes = () => notes.pins.size + notes.names.size + notes.groups.size > 0;
const called = (name) => (notes.names.has(name) ? `${name} ${notes.names.get(name)}` : name);
const groupNames = () => [...new Set(notes.groups.values())];
const hueOf = (group) => (groupNames().indexOf(group) * 67 + 20) % 360;

function noted() {
  for (const pane of panes) pane.showNotes();
  for (const pane of panes) pane.emphasise();
  showDetails();
}

/** Pin, name and group of one component, to be edited. */
function noteFields(name) {
  const pinned = notes.pins.has(name);
  const pin = el("button", {
    type: "button", class: "pin", "aria-pressed": String(pinned),
    onclick: () => { if (pinned) notes.pins.delete(name); else notes.pins.add(name); noted(); $("component").querySelector(".pin").focus(); },
  }, pinned ? "Pinned" : "Pin");
  const field = (label, map, list) => el("input", {
    type: "text", "aria-label": label, placeholder: label, value: map.get(name) || undefined, list, spellcheck: false, autocomplete: "off", maxlength: 60,
    onchange: (event) => {
      const text = event.target.value.trim();
      if (text) map.set(name, text); else map.delete(name);
      noted();
    },
  });
  const known = el("datalist", { id: "group-names" }, ...groupNames().map((group) => el("option", { value: group })));
  return [el("div", { class: "notes" }, pin, field("Your name for it", notes.names), field("Group", notes.groups, "group-names"), known)];
}

/** Pinned components and groups, for the overview; a pointer on a group shows all its members. */
function noteLists() {
  if (!anyNotes()) return [];
  const point = (names) => () => { state.hovered = names; for (const pane of panes) pane.emphasise(); };
  const button = (text, names, onclick, hue) => el("li", {}, el("button", {
    type: "button", class: "note", onclick, onpointerenter: point(names), onpointerleave: point(null), onfocus: point(names), onblur: point(null),
  }, swatch(hue), text));
  const pinned = [...notes.pins].map((name) => button(called(name), [name], () => choose(name)));
  const groups = groupNames().map((group) => {
    const members = [...notes.groups].filter(([, mine]) => mine === group).map(([name]) => name);
    return button(`${group}: ${members.join(", ")}`, members, () => choose(members[0]), hueOf(group));
  });
  const file = CIRCUITS[0].file.replace(/(\.json)?(\.gz)?$/, "") + ".notes.json";
  return [
    ...(pinned.length ? [el("h3", {}, "Pinned"), el("ul", { class: "list pinned" }, ...pinned)] : []),
    ...(groups.length ? [el("h3", {}, "Groups"), el("ul", { class: "list groups" }, ...groups)] : []),
    el("button", { type: "button", class: "more", onclick: () => saveFile(file, "application/json", JSON.stringify(writtenNotes(), null, 1)) }, "Save notes"),
    el("p", { class: "why" }, `As ${file}: beside the circuit, mechrl view and mechrl export read it. The address of this page has them as well.`),
  ];
}

function swatch(hue) {
  const spot = el("i", { class: "swatch" });
  if (hue !== undefined) spot.style.background = `hsl(${hue} 65% 50%)`;
  return spot;
}

function saveFile(name, kind, content) {
  const link = el("a", { download: name, href: URL.createObjectURL(new Blob([content], { type: kind })) });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Rings for what is pinned, colours for groups, names beside the components. */
Pane.prototype.showNotes = function () {
  const captions = [];
  for (const node of this.circuit.nodes) {
    const button = this.buttons.get(node.name), group = notes.groups.get(node.name), place = this.places.get(node.name);
    button.classList.toggle("pinned", notes.pins.has(node.name));
    button.classList.toggle("grouped", group !== undefined);
    button.style.setProperty("--hue", group === undefined ? "" : hueOf(group));
    const text = notes.names.get(node.name);
    if (text && place) {
      const caption = el("span", { class: "caption" }, text);
      Object.assign(caption.style, { left: `${place.x}px`, top: `${place.y + place.h / 2}px` });
      captions.push(caption);
    }
  }
  this.captions.replaceChildren(...captions);
};
