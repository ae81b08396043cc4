// Small helpers that every other file uses.
// Everything shown came from files: it goes into the page as text (textContent, attributes), never as markup.
const CIRCUITS = JSON.parse(document.getElementById("data").textContent).circuits;
const KINDS = { q: "query", k: "key", v: "value", in: "MLP, logits" };
const DASH = { q: [], k: [7, 4], v: [1.5, 3.5], in: [] };
const LETTER = [..."ABCDEF"];
// Drawing costs time: a dashed line ten times that of a solid one. Where everything is crowded, dashes cannot be told apart anyhow.
const AT_ONCE = 1500, DASHED_AT_ONCE = 250, DASHED_AT_ALL = 800;
const several = CIRCUITS.length > 1;
const $ = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const node = ["svg", "path", "line", "circle", "text", "rect", "g", "title"].includes(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

const icon = (path) => el("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" }, el("path", path));

function meter(share) {
  const bar = el("i");
  bar.style.width = `${100 * share}%`;
  return el("span", { class: "meter" }, bar);
}

const number = (n) => n.toLocaleString("en");
const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;
const visible = (token) => token.replace(/\n/g, "⏎").replace(/^ /, "\u00b7").replace(/^$/, "∅");
