// ---- details: attention ------------------------------------------------------------------------------------------------------

const RUNS = { clean: "Clean", corrupt: "Corrupted", circuit: "Circuit" };

function segments(label, options, chosen, pick) {
  const button = ([key, text]) => el("button", {
    type: "button", role: "radio", "aria-checked": String(key === String(chosen)), "data-key": key, onclick: () => pick(key),
  }, text);
  return el("div", { class: "segments", role: "radiogroup", "aria-label": label }, ...Object.entries(options).map(button));
}

/** Rebuilding the details takes the focus away from the control that caused it: give it back to its successor. */
function keepFocus(change) {
  const before = document.activeElement, group = before.closest?.("[role=radiogroup]"), key = before.dataset?.key;
  change();
  if (!group || !key || before.isConnected) return;
  document.querySelector(`[role=radiogroup][aria-label="${group.getAttribute("aria-label")}"] [data-key="${key}"]`)?.focus();
}

/** Segments that set one field of the state. */
const setter = (label, options, key, read = (x) => x) => segments(label, options, state[key], (picked) => keepFocus(() => {
  state[key] = read(picked);
  showDetails();
}));
const pairPicker = (circuit, label) => setter(label, circuit.raw.pairs.map((_, i) => `${i + 1}`), "pair", Number);
const switcher = () => setter("Circuit", circuits.map((_, i) => `${circuits.length > 2 ? "" : "Circuit "}${LETTER[i]}`), "active", Number);

function attention(circuit, node) {
  const stored = circuit.raw.attention;
  const title = el("h3", {}, "Attention");
  const which = stored ? stored.heads.indexOf(node.name) : -1;
  const runs = stored && stored.pairs[Math.min(state.pair, circuit.raw.pairs.length - 1)];
  if (!stored) return [];
  if (which < 0) return [title, el("p", { class: "why" }, "Patterns are kept for the heads of the final circuit.")];
  if (!runs) return [title, pairPicker(circuit, "Prompt"), el("p", { class: "why" }, "This prompt is too long to keep its patterns.")];
  const pair = pairOf(circuit);
  const tokens = state.run === "corrupt" ? pair.corrupt : pair.clean;
  const n = tokens.length, size = n * (n + 1) / 2;
  const bytes = Uint8Array.from(atob(runs[state.run]).slice(which * size, (which + 1) * size), (c) => c.charCodeAt(0));
  const at = (query, key) => bytes[query * (query + 1) / 2 + key] / 255;
  const readout = el("p", { "aria-live": "polite" });
  const summary = () => {
    const row = tokens.map((_, key) => [at(n - 1, key), key]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([p]) => p >= 0.01);
    readout.textContent = `The last token looks at ${row.map(([p, key]) => `“${tokens[key].trim()}” ${p.toFixed(2)}`).join(", ")}.`;
  };
  const canvas = el("canvas", { role: "img", "aria-label": `Attention pattern of ${node.name}, ${RUNS[state.run]} run` });
  heatmap(canvas, tokens, at, readout, summary);
  summary();
  const pickers = el("div", { class: "picker" }, setter("Run", RUNS, "run"));
  title.append(pairPicker(circuit, "Prompt"));
  return [title, pickers, el("div", { class: "attention" }, canvas, readout)];
}

function heatmap(canvas, tokens, at, readout, summary) {
  const n = tokens.length, width = Math.max(240, $("component").clientWidth - 32);
  const context = canvas.getContext("2d"), font = "10px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
  context.font = font;
  const short = tokens.map((t) => { const text = visible(t.trim()); return text.length > 11 ? `${text.slice(0, 10)}…` : text; });
  const margin = Math.min(78, 6 + Math.max(...short.map((t) => context.measureText(t).width)));
  const cell = Math.max(2, Math.min(26, Math.floor((width - margin) / n))), labels = cell >= 9;
  const left = labels ? margin : 0, height = left + cell * n;
  canvas.width = (left + cell * n) * devicePixelRatio;
  canvas.height = height * devicePixelRatio;
  canvas.style.width = `${left + cell * n}px`;
  canvas.dataset.cell = cell;
  const paint = (query, key) => {
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, left + cell * n, height);
    context.font = font;
    context.textBaseline = "middle";
    for (let q = 0; q < n; q++) {
      for (let k = 0; k <= q; k++) {
        context.globalAlpha = 1;
        context.fillStyle = colours.line;
        context.fillRect(left + k * cell, left + q * cell, cell - 1, cell - 1);
        context.globalAlpha = at(q, k);
        context.fillStyle = colours.accent;
        context.fillRect(left + k * cell, left + q * cell, cell - 1, cell - 1);
      }
    }
    context.globalAlpha = 1;
    for (let i = 0; labels && i < n; i++) {
      context.textAlign = "right";
      context.fillStyle = i === query ? colours.text : colours.muted;
      context.fillText(short[i], left - 5, left + (i + 0.5) * cell);
      context.save();
      context.translate(left + (i + 0.5) * cell, left - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillStyle = i === key ? colours.text : colours.muted;
      context.fillText(short[i], 0, 0);
      context.restore();
    }
    if (query !== undefined) {
      context.strokeStyle = colours.text;
      context.strokeRect(left + key * cell - 0.5, left + query * cell - 0.5, cell, cell);
    }
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), scale = (left + cell * n) / box.width;
    const cellAt = (pointer) => Math.floor((pointer * scale - left) / cell);
    const key = cellAt(event.clientX - box.left), query = cellAt(event.clientY - box.top);
    if (key < 0 || query < 0 || query >= n || key > query) { paint(); return summary(); }
    paint(query, key);
    readout.textContent = `“${tokens[query].trim()}” looks at “${tokens[key].trim()}”: ${at(query, key).toFixed(2)}`;
  });
  canvas.addEventListener("pointerleave", () => { paint(); summary(); });
  paint();
}
