"use strict";
(() => {
  // Everything shown came from files: it goes into the page as text (textContent, attributes), never as markup.
  const CIRCUITS = JSON.parse(document.getElementById("data").textContent).circuits;
  const KINDS = { q: "query", k: "key", v: "value", in: "MLP, logits" };
  const DASH = { q: [], k: [7, 4], v: [1.5, 3.5], in: [] };
  const LETTER = ["A", "B"];
  // Drawing costs time: a dashed line ten times that of a solid one. Where everything is crowded, dashes cannot be told apart anyhow.
  const AT_ONCE = 1500, DASHED_AT_ONCE = 250, DASHED_AT_ALL = 800;
  const both = CIRCUITS.length === 2;
  const $ = (id) => document.getElementById(id);

  function el(tag, attributes = {}, ...children) {
    const node = ["svg", "path", "line", "circle", "text"].includes(tag)
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

  // ---- the data, made ready ----------------------------------------------------------------------------------------

  function prepare(raw, index) {
    const nodes = [...raw.sources, "logits"].map((name) => {
      const head = /^a(\d+)\.h(\d+)$/.exec(name), mlp = /^m(\d+)$/.exec(name);
      if (head) return { name, kind: "head", layer: +head[1], head: +head[2], into: [], out: [] };
      if (mlp) return { name, kind: "mlp", layer: +mlp[1], into: [], out: [] };
      return { name, kind: "end", layer: name === "input" ? -1 : Infinity, into: [], out: [] };
    });
    const byName = new Map(nodes.map((node) => [node.name, node]));
    const layers = 1 + Math.max(...nodes.map((n) => (n.kind === "mlp" ? n.layer : 0)));
    const heads = nodes.filter((n) => n.kind === "head" && n.layer === 0).length;
    const kvHeads = new Set(raw.receivers.filter((r) => /^a0\..*<k>$/.test(r))).size;
    const group = heads / kvHeads;
    const ports = raw.receivers.map((name) => {
      const part = /^a(\d+)\.(h|kv)(\d+)<([qkv])>$/.exec(name);
      if (!part) return { name, kind: "in", nodes: [byName.get(name)] };
      const shared = part[2] === "kv"; // one k and v input serves a group of heads
      const first = shared ? part[3] * group : +part[3];
      const members = Array.from({ length: shared ? group : 1 }, (_, i) => byName.get(`a${part[1]}.h${first + i}`));
      return { name, kind: part[4], nodes: members, shared };
    });
    const stops = raw.stops.size.length;
    const peak = raw.edges.importance.reduce((most, x) => Math.max(most, Math.abs(x)), 1e-30);
    const edges = raw.edges.id.map((id, i) => {
      const share = Math.abs(raw.edges.importance[i]) / peak;
      const edge = {
        id, source: nodes[raw.edges.source[i]], port: ports[raw.edges.receiver[i]], value: raw.edges.importance[i],
        share, width: raw.scored ? 0.8 + 3 * Math.sqrt(share) : 0.7 + 1.3 * share ** 3, stops: raw.edges.stops[i],
      };
      edge.source.out.push(edge);
      for (const node of edge.port.nodes) node.into.push(edge);
      return edge;
    });
    return { raw, index, nodes, byName, layers, heads, kvHeads, group, ports, edges, stops, stop: stops - 1 };
  }

  const circuits = CIRCUITS.map(prepare);
  const comparable = both && CIRCUITS[0].receivers.join() === CIRCUITS[1].receivers.join();
  const isLive = (circuit, edge) => edge.stops > circuit.stop;
  const live = (circuit, edges) => edges.filter((edge) => isLive(circuit, edge));
  const isOn = (circuit, node) => (node.name === "logits" ? node.into : node.out).some((edge) => isLive(circuit, edge));
  const counts = (circuit, node) => isOn(circuit, node)
    ? `${plural(live(circuit, node.into).length, "edge")} in, ${live(circuit, node.out).length} out`
    : "not in the circuit";
  const roleOf = (name) => circuits.map((c) => c.raw.known[name]).find(Boolean);

  function valueOf(circuit, edge) {
    if (circuit.raw.scored) return (edge.value < 0 ? "−" : "") + Math.abs(edge.value).toPrecision(2);
    if (edge.stops >= circuit.stops) return "kept";
    return edge.stops ? `until ${number(circuit.raw.stops.size[edge.stops - 1])}` : "on no path";
  }

  // ---- state ---------------------------------------------------------------------------------------------------------

  const state = { chosen: null, hovered: null, edge: null, active: 0, pair: 0, run: "circuit", filter: "all" };
  const shared = { ids: new Set() }; // edges that both circuits have now
  const panes = [];
  let colours = {};

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
    shared.ids = new Set([...ids[0]].filter((id) => ids[1].has(id)));
    shared.only = ids.map((mine) => mine.size - shared.ids.size);
    for (const pane of panes) pane.showShared();
  }

  // ---- one circuit ----------------------------------------------------------------------------------------------------

  class Pane {
    constructor(circuit) {
      this.circuit = circuit;
      const { raw, index } = circuit;
      this.sharedLine = el("p", { class: "shared" });
      const title = el("h2", {}, ...(both ? [el("span", { class: "letter" }, LETTER[index])] : []), raw.name);
      const lead = el("p", {}, raw.lead);
      this.base = el("canvas", { class: "base", "aria-hidden": "true" });
      this.over = el("canvas", { "aria-hidden": "true" });
      this.rows = el("div", { "aria-hidden": "true" });
      this.group = el("div", { role: "group", "aria-label": `Components of ${raw.name}; arrow keys move, Enter selects` });
      this.world = el("div", { class: "world" }, this.rows, this.base, this.over, this.group);
      this.stage = el("div", { class: "stage" }, this.world);
      this.replay = new Replay(this);
      const notes = raw.notes.map((note) => el("p", { class: "note" }, note));
      const header = el("header", {}, title, lead, ...(both ? [this.sharedLine] : []), ...notes);
      this.root = el("section", { class: "pane", "aria-label": raw.name }, header, this.stage, this.replay.root);
      this.places = new Map();
      this.buttons = new Map();
      for (const node of circuit.nodes) this.addButton(node);
      this.world.addEventListener("pointermove", (event) => this.hoverEdge(event));
      this.world.addEventListener("pointerleave", () => this.hoverEdge(null));
      this.world.addEventListener("click", (event) => event.target.closest(".node") || choose(null, circuit.index));
      new ResizeObserver(() => this.layout()).observe(this.stage);
    }

    addButton(node) {
      const button = el("button", {
        type: "button", class: `node ${node.kind}`, tabindex: "-1", "data-name": node.name, "aria-pressed": "false",
        onpointerenter: () => hover(node.name, this),
        onpointerleave: () => hover(null, this),
        onfocus: () => { this.roving(node.name); if (button.matches(":focus-visible")) hover(node.name, this); },
        onblur: () => hover(null, this),
        onclick: () => choose(state.chosen === node.name && state.active === this.circuit.index ? null : node.name, this.circuit.index),
        onkeydown: (event) => this.move(event, node),
      });
      if (this.circuit.raw.known[node.name]) button.classList.add("known");
      this.buttons.set(node.name, button);
      this.group.append(button);
    }

    /** One component takes part in the tab order; the arrow keys move that part about. */
    roving(name) {
      for (const [other, button] of this.buttons) button.tabIndex = other === name ? 0 : -1;
    }

    move(event, node) {
      const step = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
      if (!step) return;
      event.preventDefault();
      const here = this.places.get(node.name);
      let best = null, least = Infinity;
      for (const other of this.circuit.nodes) {
        if (other === node || !isOn(this.circuit, other)) continue;
        const there = this.places.get(other.name);
        const along = (there.x - here.x) * step[0] + (there.y - here.y) * step[1];
        const aside = Math.abs((there.x - here.x) * step[1]) + Math.abs((there.y - here.y) * step[0]);
        if (along < 2 || (step[0] && aside > 4)) continue;
        const cost = along + aside / (step[0] ? 1 : 4);
        if (cost < least) [best, least] = [other, cost];
      }
      if (best) this.buttons.get(best.name).focus();
    }

    layout() {
      const { circuit } = this;
      const width = this.stage.clientWidth, top = 34, bottom = 30, ends = 46, left = 64, right = 56;
      if (!width) return;
      const row = Math.max(19, Math.min(150, (this.stage.clientHeight - top - bottom - ends) / circuit.layers));
      const height = Math.max(this.stage.clientHeight, Math.round(top + bottom + ends + row * circuit.layers));
      // the MLPs are a spine between the heads, at the boundary of a group of heads that is nearest to the middle
      const spine = 2.4, split = Math.round(circuit.kvHeads / 2) * circuit.group;
      const column = Math.min(104, (width - left - right) / (circuit.heads + spine));
      const grid = column * (circuit.heads + spine), x0 = left + Math.max(0, (width - left - right - grid) / 2);
      const chip = { w: Math.min(44, column * 0.78), h: Math.min(24, row * 0.66) };
      const middle = x0 + (split + spine / 2) * column, endWidth = Math.max(120, grid * 0.42);
      const centre = Math.max(x0 + endWidth / 2, Math.min(middle, x0 + grid - endWidth / 2)); // of the input and the logits
      const floor = height - bottom - ends + 14;
      const yOf = (layer) => floor - (layer + 0.5) * row;
      Object.assign(this, { width, height, chip, middle, centre, endWidth, row, x0, grid });
      this.world.style.height = `${height}px`;

      this.rows.replaceChildren();
      for (let layer = 0; layer < circuit.layers; layer++) {
        const label = layer === 0 || row > 40 ? `layer ${layer}` : `${layer}`;
        const stripe = el("div", { class: `row ${layer % 2 ? "odd" : ""}` }, el("span", {}, label));
        stripe.style.top = `${yOf(layer) - row / 2}px`;
        stripe.style.height = `${row}px`;
        this.rows.append(stripe);
      }
      const raise = row * (row > 48 ? 0.25 : 0.13); // an MLP reads the heads of its own layer, so it stands a little higher
      const longest = `${circuit.layers - 1}.${circuit.heads - 1}`.length; // a monospaced character is 0.6 of its size wide
      const brief = longest * 8 * 0.6 > chip.w - 2; // no room for 11.10 at the smallest size: then 10, and the row says the layer
      const size = Math.max(8, Math.min(11, chip.h * 0.7, (chip.w - 2) / ((brief ? 3 : longest) * 0.6)));
      for (const node of circuit.nodes) {
        let place;
        const across = x0 + (node.head + 0.5 + (node.head < split ? 0 : spine)) * column;
        if (node.kind === "head") place = { x: across, y: yOf(node.layer) + raise, ...chip };
        else if (node.kind === "mlp") place = { x: middle, y: yOf(node.layer) - raise, ...chip };
        else place = { x: centre, y: node.name === "input" ? height - bottom + 4 : top - 8, w: endWidth, h: 24 };
        this.places.set(node.name, place);
        const button = this.buttons.get(node.name);
        Object.assign(button.style, { left: `${place.x}px`, top: `${place.y}px`, width: `${place.w}px`, height: `${place.h}px` });
        button.style.fontSize = node.kind === "end" ? "" : `${size}px`;
        button.textContent = node.kind === "head" ? (brief ? `${node.head}` : `${node.layer}.${node.head}`) : node.name;
      }
      this.brackets = [];
      if (circuit.group > 1) {
        for (const port of circuit.ports.filter((p) => p.shared && p.kind === "k")) {
          const members = port.nodes.map((n) => this.places.get(n.name));
          const bracket = el("div", { class: "bracket" });
          const from = members[0].x - chip.w / 2, to = members.at(-1).x + chip.w / 2;
          Object.assign(bracket.style, { left: `${from}px`, width: `${to - from}px`, top: `${members[0].y + chip.h / 2 + 1}px` });
          this.rows.append(bracket);
          this.brackets.push({ bracket, name: port.name });
        }
      }
      for (const canvas of [this.base, this.over]) {
        canvas.width = Math.round(width * devicePixelRatio);
        canvas.height = Math.round(height * devicePixelRatio);
        canvas.style.width = `${width}px`;
        canvas.style.height = `${height}px`;
      }
      for (const edge of circuit.edges) {
        const [x0, y0, ...rest] = (edge.curve = this.curve(edge));
        edge.path = new Path2D();
        edge.path.moveTo(x0, y0);
        edge.path.bezierCurveTo(...rest);
      }
      this.replay.layout();
      this.draw();
    }

    /** A cubic from the top of the source to the bottom of the input it feeds: [x0, y0, x1, y1, x2, y2, x3, y3]. */
    curve(edge) {
      const from = this.places.get(edge.source.name), port = edge.port;
      const members = port.nodes.map((n) => this.places.get(n.name));
      const to = { x: (members[0].x + members.at(-1).x) / 2, y: members[0].y, w: members[0].w, h: members[0].h };
      let x0 = from.x, x3 = to.x, y3 = to.y + to.h / 2;
      const y0 = from.y - from.h / 2;
      const lane = Math.min(9, to.w / 4) * { q: -1, k: 0, v: 1, in: 0 }[port.kind];
      if (port.shared) { x3 += port.kind === "k" ? -4 : 4; y3 += 4; } else if (port.kind !== "in" && this.circuit.group === 1) x3 += lane;
      // the input and the logits are wide: their edges begin and end below or above the component at the other end
      const half = this.endWidth / 2 - 12, anchor = Math.max(this.centre - half, Math.min(this.middle, this.centre + half));
      const along = (x) => x < this.middle
        ? anchor - (anchor - this.centre + half) * (this.middle - x) / (this.middle - this.x0)
        : anchor + (this.centre + half - anchor) * (x - this.middle) / (this.x0 + this.grid - this.middle);
      if (edge.source.kind === "end") x0 = along(x3);
      if (port.nodes[0].kind === "end") x3 = along(x0);
      const rise = y0 - y3, pull = Math.max(8, rise * 0.46);
      // an edge straight up a column would hide behind the components between its ends: it goes round them
      const between = rise > this.row * 1.2 && Math.abs(x3 - x0) < this.chip.w * 0.7;
      const bow = between ? Math.min(this.chip.w * 1.3, 16 + rise * 0.1) * (edge.source.layer % 2 ? 1 : -1) : 0;
      return [x0, y0, x0 + bow, y0 - pull, x3 + bow, y3 + pull, x3, y3];
    }

    shows(edge) {
      if (!isLive(this.circuit, edge)) return false;
      if (state.filter === "all" || !comparable) return true;
      return shared.ids.has(edge.id) === (state.filter === "shared");
    }

    /** While the slider moves, the most important edges are drawn; all of them when it rests. */
    draw(moving = false) {
      if (!this.width) return;
      const { circuit } = this;
      let drawn = circuit.edges.filter((edge) => this.shows(edge));
      if (drawn.length > circuit.raw.most) drawn = drawn.sort((a, b) => b.share - a.share).slice(0, circuit.raw.most);
      const dashed = drawn.length <= (moving ? DASHED_AT_ONCE : DASHED_AT_ALL);
      clearTimeout(this.rest);
      if (moving && !dashed) {
        drawn = drawn.sort((a, b) => b.share - a.share).slice(0, AT_ONCE);
        this.rest = setTimeout(() => this.draw(), 150);
      }
      const weight = new Map();
      const on = new Set(), fed = new Set();
      for (const edge of drawn) {
        fed.add(edge.port.name.replace("<v>", "<k>"));
        for (const node of [edge.source, ...edge.port.nodes]) weight.set(node, (weight.get(node) || 0) + edge.share);
      }
      for (const node of circuit.nodes) if (isOn(circuit, node)) on.add(node);
      const heaviest = Math.max(...[...on].filter((n) => n.kind !== "end").map((n) => weight.get(n) || 0), 1e-30);
      for (const node of circuit.nodes) {
        const button = this.buttons.get(node.name), isIn = on.has(node);
        button.classList.toggle("on", isIn);
        button.style.setProperty("--t", isIn && node.kind !== "end" ? Math.sqrt((weight.get(node) || 0) / heaviest).toFixed(2) : 0);
        const role = circuit.raw.known[node.name];
        button.setAttribute("aria-label", `${node.name}${role ? `, ${role[0]}` : ""}, ${counts(circuit, node)}`);
      }
      if (![...this.buttons.values()].some((b) => b.tabIndex === 0)) this.roving("logits");
      for (const { bracket, name } of this.brackets) bracket.classList.toggle("on", fed.has(name));
      const context = this.context(this.base);
      const crowd = Math.max(0.22, Math.min(0.9, 7 / Math.sqrt(drawn.length)));
      if (comparable && state.filter === "all") {
        this.stroke(context, drawn.filter((e) => !shared.ids.has(e.id)), crowd * 0.38, 0.75, dashed);
        this.stroke(context, drawn.filter((e) => shared.ids.has(e.id)), Math.min(1, crowd * 1.25), 1.15, dashed);
      } else {
        this.stroke(context, drawn, crowd, 1, dashed);
      }
      this.emphasise();
    }

    context(canvas) {
      const context = canvas.getContext("2d");
      context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
      context.clearRect(0, 0, this.width, this.height);
      return context;
    }

    /** Thin edges first. Curve by curve: one path of thousands takes longer, because it is filled as a whole. */
    stroke(context, edges, alpha, scale, dashed) {
      context.globalAlpha = alpha;
      for (const edge of [...edges].sort((a, b) => a.width - b.width)) {
        const { kind } = edge.port, width = edge.width * scale;
        context.lineWidth = width;
        context.lineCap = kind === "v" ? "round" : "butt";
        context.setLineDash(dashed ? DASH[kind].map((n) => n * Math.max(1, width / 1.6)) : []);
        context.strokeStyle = colours[kind];
        context.stroke(edge.path);
      }
      context.globalAlpha = 1;
    }

    /** What the pointer or the focus is on, else what is selected, stands out; everything else recedes. */
    emphasise() {
      if (!this.width) return;
      const { circuit } = this;
      const node = circuit.byName.get(state.hovered ?? state.chosen ?? "");
      const edge = state.edge !== null && circuit.edges.find((e) => e.id === state.edge && this.shows(e));
      const edges = edge ? [edge] : node ? [...node.into, ...node.out].filter((e) => this.shows(e)) : [];
      const near = new Set(node ? [node] : []);
      for (const e of edges) [e.source, ...e.port.nodes].forEach((n) => near.add(n));
      const quiet = Boolean(edge || node);
      this.world.classList.toggle("quiet", quiet);
      for (const other of circuit.nodes) {
        const classes = this.buttons.get(other.name).classList;
        if (classes.contains("near") !== (quiet && near.has(other))) classes.toggle("near");
        const chosen = other.name === state.chosen;
        if (classes.contains("chosen") !== chosen) {
          classes.toggle("chosen");
          this.buttons.get(other.name).setAttribute("aria-pressed", String(chosen));
        }
      }
      const context = this.context(this.over);
      this.stroke(context, edges, 0.95, 1.15, edges.length <= DASHED_AT_ONCE);
    }

    hoverEdge(event) {
      let best = null;
      if (event && !event.target.closest(".node")) {
        const box = this.world.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
        let least = 30; // within some five pixels
        for (const edge of this.circuit.edges) {
          const [x0, y0, x1, y1, x2, y2, x3, y3] = edge.curve;
          if (y > y0 + 4 || y < y3 - 4 || x < Math.min(x0, x1, x3) - 6 || x > Math.max(x0, x1, x3) + 6 || !this.shows(edge)) continue;
          // y falls all the way along the curve: halve towards the height of the pointer
          let low = 0, high = 1;
          for (let i = 0; i < 9; i++) {
            const t = (low + high) / 2, s = 1 - t;
            if (s * s * s * y0 + 3 * s * s * t * y1 + 3 * s * t * t * y2 + t * t * t * y3 > y) low = t; else high = t;
          }
          const t = low, s = 1 - t;
          const gap = (s * s * s * x0 + 3 * s * s * t * x1 + 3 * s * t * t * x2 + t * t * t * x3 - x) ** 2;
          if (gap < least) [best, least] = [edge, gap];
        }
      }
      const id = best ? best.id : null;
      if (best) tip(event.clientX, event.clientY, `${best.source.name} → ${best.port.name}`, [valueOf(this.circuit, best)]);
      else if (state.edge !== null) tip();
      if (id === state.edge) return;
      state.edge = id;
      for (const pane of panes) pane.emphasise();
    }

    setStop(stop) {
      this.circuit.stop = stop;
      compare();
      for (const pane of comparable ? panes : [this]) pane.draw(true);
      this.replay.show();
      showDetails();
    }

    showShared() {
      const only = shared.only[this.circuit.index];
      this.sharedLine.textContent = `${plural(shared.ids.size, "edge")} shared, ${number(only)} only here`;
    }
  }

  // ---- replay of the removal order -------------------------------------------------------------------------------------

  class Replay {
    constructor(pane) {
      this.pane = pane;
      const { circuit } = pane, last = circuit.stops - 1;
      this.button = el("button", { type: "button", class: "icon", "aria-label": "Replay the removal order", onclick: () => this.play() });
      this.range = el("input", {
        type: "range", min: 0, max: last, value: last, step: 1, "aria-label": "Removal order",
        oninput: () => { this.pause(); pane.setStop(+this.range.value); },
      });
      this.range.value = last;
      this.chart = el("svg", { "aria-hidden": "true" });
      this.big = el("b");
      this.small = el("span");
      this.dead = el("span", { title: "Kept edges that lie on no path from the input to the logits; they change nothing" });
      this.readout = el("div", { class: "readout" }, this.big, this.small, this.dead);
      const { size } = circuit.raw.stops;
      const ends = el("div", { class: "ends" }, el("span", {}, plural(size[0], "edge")), el("span", {}, number(size[last])));
      const track = el("div", { class: "track" }, this.chart, this.range, ends);
      this.root = el("footer", { class: "replay" }, this.button, track, this.readout);
      this.chart.toggleAttribute("hidden", !circuit.raw.stops.f);
      this.root.classList.toggle("still", last === 0);
      this.icon();
    }

    icon() {
      const shape = this.timer ? "M4 3h3v10H4zM9 3h3v10H9z" : "M5 3l8 5-8 5z";
      this.button.replaceChildren(icon({ d: shape, fill: "currentColor" }));
      this.button.setAttribute("aria-label", this.timer ? "Pause" : "Replay the removal order");
    }

    play() {
      if (this.timer) return this.pause();
      const { circuit } = this.pane;
      if (circuit.stop === circuit.stops - 1) this.go(0);
      this.timer = setInterval(() => {
        if (circuit.stop < circuit.stops - 1) this.go(circuit.stop + 1);
        if (circuit.stop === circuit.stops - 1) this.pause();
      }, 110);
      this.icon();
    }

    pause() {
      clearInterval(this.timer);
      this.timer = null;
      this.icon();
    }

    go(stop) {
      this.range.value = stop;
      this.pane.setStop(stop);
    }

    layout() {
      const { raw, stops } = this.pane.circuit;
      if (raw.stops.f) {
        const width = this.chart.clientWidth, height = 46, pad = 8;
        const floor = Math.max(-0.2, Math.min(raw.tau, ...raw.stops.f) - 0.04);
        this.x = (stop) => pad + (width - 2 * pad) * (stops > 1 ? stop / (stops - 1) : 1);
        this.y = (f) => 3 + (height - 6) * (1 - (Math.max(f, floor) - floor) / (1.02 - floor));
        const points = raw.stops.f.map((f, i) => `${i ? "L" : "M"}${this.x(i).toFixed(1)} ${this.y(f).toFixed(1)}`).join("");
        const rule = (f, colour, dash) => el("line", {
          x1: pad, x2: width - pad, y1: this.y(f), y2: this.y(f), stroke: `var(--${colour})`, "stroke-dasharray": dash,
        });
        this.cursor = el("line", { y1: 0, y2: height, stroke: "var(--faint)" });
        this.dot = el("circle", { r: 3.5, fill: "var(--accent)", stroke: "var(--ground)", "stroke-width": 1.5 });
        const label = (y, text) => el("text", { x: width - pad + 6, y: y + 3.5, class: "label" }, text);
        this.chart.replaceChildren(
          rule(1, "line", ""), rule(raw.tau, "faint", "3 3"), this.cursor,
          label(this.y(1), "f = 1"), label(Math.max(this.y(raw.tau), this.y(1) + 11), "τ"),
          el("path", { d: points, fill: "none", stroke: "var(--accent)", "stroke-width": 1.5, "stroke-linejoin": "round" }), this.dot,
        );
      }
      this.show();
    }

    show() {
      const { raw, stop, stops } = this.pane.circuit;
      const last = stop === stops - 1, f = raw.stops.f ? raw.stops.f[stop] : last ? raw.faithfulness : null;
      const onPath = raw.stops.live[stop], size = raw.stops.size[stop];
      this.big.textContent = f === null ? plural(onPath, "edge") : `f ${f.toFixed(3)}`;
      this.small.textContent = f === null ? "f was not measured" : plural(onPath, "edge");
      this.dead.textContent = size > onPath ? `+ ${number(size - onPath)} on no path` : "";
      this.range.setAttribute("aria-valuetext", `${plural(onPath, "edge")}${f === null ? "" : `, f ${f.toFixed(3)}`}`);
      if (this.cursor) {
        for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(stop));
        this.dot.setAttribute("cx", this.x(stop));
        this.dot.setAttribute("cy", this.y(f));
      }
    }
  }

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
    lines.push(counts(circuit, node));
    if (circuit.raw.scored && isOn(circuit, node)) lines.push(`strongest ${strongest(circuit, node)}`);
    const box = pane.buttons.get(name).getBoundingClientRect();
    tip(box.right - 8, box.bottom - 10, name, lines);
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

  // ---- details: the component -----------------------------------------------------------------------------------------------

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
    const where = both
      ? ["in neither circuit", "in A only", "in B only", "in both circuits"][(last[0] ? 1 : 0) + (last[1] ? 2 : 0)]
      : last[0] ? "in the circuit" : "not in the circuit";
    const parts = [el("h2", { class: "name" }, node.name), el("p", { class: "lead" }, `${what}, ${where}`)];
    if (role) parts.push(el("p", { class: "role" }, role[0]), el("p", { class: "lead" }, `${role[1]}, confidence ${role[2]}`));
    const third = circuit.raw.scored
      ? ["Strongest score", live(circuit, [...node.into, ...node.out]).length ? strongest(circuit, node) : "–"]
      : ["Stays until", lasts(circuit, node)];
    const of = both ? ", A or B" : "";
    const figures = [[`Edges in${of}`, into.length], [`Edges out${of}`, out.length], third];
    parts.push(el("dl", { class: "figures" }, ...figures.map(([dt, dd]) => el("div", {}, el("dt", {}, dt), el("dd", {}, String(dd))))));
    if (node.kind === "head") parts.push(...attention(circuit, node));
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
      const inEach = LETTER.map((letter, i) => el("i", { class: has.includes(i) ? "yes" : "" }, letter));
      const marks = el("span", { class: "marks", "aria-label": `in ${has.map((i) => LETTER[i]).join(" and ")}` }, ...inEach);
      const tag = el("span", { class: `tag ${kind}`, title: KINDS[kind] }, kind === "in" ? "→" : kind);
      const value = el("span", { class: "value" }, valueOf(circuit, edge));
      return el("li", {}, el("button", {
        type: "button", title: `${edge.source.name} → ${edge.port.name}`, onclick: () => { state.edge = null; choose(goal.name); },
        onpointerenter: point(true), onpointerleave: point(false), onfocus: point(true), onblur: point(false),
      }, tag, el("span", { class: "name" }, label(edge)), ...(both ? [marks] : []), meter(Math.max(0.02, edge.share)), value));
    });
    return el("ul", { class: both ? "list both" : "list" }, ...items);
  }

  function overview(circuit) {
    const rows = circuit.nodes.filter((n) => n.kind !== "end" && isOn(circuit, n)).map((node) => {
      const edges = live(circuit, [...node.into, ...node.out]);
      return { node, many: edges.length, weight: edges.reduce((sum, e) => sum + e.share, 0) };
    }).sort((a, b) => b.weight - a.weight);
    const peak = rows.length ? rows[0].weight : 1;
    const items = rows.slice(0, 14).map(({ node, many, weight }) => {
      const role = roleOf(node.name);
      const edges = el("span", { class: "value" }, plural(many, "edge"));
      return el("li", {}, el("button", {
        type: "button", onclick: () => choose(node.name),
        onpointerenter: () => { state.hovered = node.name; for (const p of panes) p.emphasise(); },
        onpointerleave: () => { state.hovered = null; for (const p of panes) p.emphasise(); },
      }, el("span"), el("span", { class: "name", title: role && role[0] }, node.name), meter(weight / peak), edges));
    });
    const lead = "Choose one in the picture or below, or press / to search. The arrow keys move from component to component.";
    const shown = rows.length > 14 ? `14 of ${rows.length}` : `${rows.length}`;
    const title = both ? `Components of ${LETTER[circuit.index]}` : "Components";
    return [el("h2", {}, title), el("p", { class: "lead" }, lead),
      el("h3", {}, `By the ${circuit.raw.scored ? "scores" : "number"} of their edges`, el("span", {}, shown)),
      el("ul", { class: "list" }, ...items)];
  }

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
  const switcher = () => setter("Circuit", ["Circuit A", "Circuit B"], "active", Number);

  function attention(circuit, node) {
    const stored = circuit.raw.attention;
    const title = el("h3", {}, "Attention");
    const which = stored ? stored.heads.indexOf(node.name) : -1;
    const runs = stored && stored.pairs[Math.min(state.pair, circuit.raw.pairs.length - 1)];
    if (!stored) return [];
    if (which < 0) return [title, el("p", { class: "why" }, "Patterns are kept for the heads of the final circuit.")];
    if (!runs) return [title, pairPicker(circuit, "Prompt"), el("p", { class: "why" }, "This prompt is too long to keep its patterns.")];
    const pair = circuit.raw.pairs[Math.min(state.pair, circuit.raw.pairs.length - 1)];
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
      const at = (pointer) => Math.floor((pointer * scale - left) / cell);
      const key = at(event.clientX - box.left), query = at(event.clientY - box.top);
      if (key < 0 || query < 0 || query >= n || key > query) { paint(); return summary(); }
      paint(query, key);
      readout.textContent = `“${tokens[query].trim()}” looks at “${tokens[key].trim()}”: ${at(query, key).toFixed(2)}`;
    });
    canvas.addEventListener("pointerleave", () => { paint(); summary(); });
    paint();
  }

  // ---- details: prompts and provenance ------------------------------------------------------------------------------------------

  function showPrompts() {
    const circuit = circuits[state.active], { pairs, notes } = circuit.raw;
    const parts = [el("h2", {}, "Prompt pairs")];
    if (both) parts.push(switcher());
    if (!pairs.length) {
      parts.push(...notes.map((note) => el("p", { class: "why" }, note)));
      return $("prompts").replaceChildren(...parts);
    }
    const pair = pairs[Math.min(state.pair, pairs.length - 1)];
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
    const some = (list) => {
      const first = list.slice(0, 6).map((token) => `“${visible(token)}”`).join(", ");
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
    if (both) parts.push(switcher());
    if (comparable) {
      const union = shared.ids.size + shared.only[0] + shared.only[1];
      const on = circuits.map((c) => c.nodes.filter((n) => n.kind !== "end" && isOn(c, n)).map((n) => n.name));
      const common = on[0].filter((name) => on[1].includes(name)).length, all = new Set([...on[0], ...on[1]]).size;
      parts.push(el("h3", {}, "What the two share"), table([
        ["edges", `${number(shared.ids.size)} of ${number(union)} (Jaccard ${union ? (shared.ids.size / union).toFixed(2) : "–"})`],
        ["components", `${common} of ${all} (Jaccard ${all ? (common / all).toFixed(2) : "–"})`],
        ["only in A", plural(shared.only[0], "edge")], ["only in B", plural(shared.only[1], "edge")]]));
    } else if (both) parts.push(el("p", { class: "why" }, "The two models have different shapes, so their edges cannot be compared."));
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

  // ---- tabs ---------------------------------------------------------------------------------------------------------------------

  const TABS = { component: showComponent, prompts: showPrompts, about: showAbout };
  let openNow = "component";

  function openTab(name) {
    openNow = name;
    for (const tab of Object.keys(TABS)) {
      const button = $(`tab-${tab}`);
      button.setAttribute("aria-selected", String(tab === name));
      button.tabIndex = tab === name ? 0 : -1;
      $(tab).hidden = tab !== name;
    }
  }

  const showDetails = () => TABS[openNow]();

  function startTabs() {
    const names = Object.keys(TABS);
    names.forEach((name, i) => {
      const button = $(`tab-${name}`);
      button.addEventListener("click", () => { openTab(name); showDetails(); });
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = names[(i + step + names.length) % names.length];
        openTab(next);
        showDetails();
        $(`tab-${next}`).focus();
      });
    });
  }

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
      const place = pane.places.get(name);
      const { scrollTop, clientHeight } = pane.stage;
      if (place.y < scrollTop + 30 || place.y > scrollTop + clientHeight - 30) pane.stage.scrollTop = place.y - clientHeight / 2;
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

  // ---- light and dark, legend, filter --------------------------------------------------------------------------------------------------

  function recolour() {
    readColours();
    for (const pane of panes) pane.draw();
    showDetails();
  }

  function startTheme() {
    const button = $("theme"), system = matchMedia("(prefers-color-scheme: dark)");
    const moon = "M13.2 9.9A5.6 5.6 0 0 1 6.1 2.8 5.6 5.6 0 1 0 13.2 9.9z";
    button.append(icon({ d: moon, fill: "none", stroke: "currentColor", "stroke-width": 1.4, "stroke-linejoin": "round" }));
    let chosen = null;
    button.addEventListener("click", () => {
      chosen = (chosen ?? (system.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
      document.documentElement.style.colorScheme = chosen;
      recolour();
    });
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
    }));
    box.id = "filter";
    $("filter").replaceWith(box);
  }

  readColours();
  for (const circuit of circuits) panes.push(new Pane(circuit));
  compare();
  $("panes").append(...panes.map((pane) => pane.root));
  startLegend();
  startTheme();
  startTabs();
  startSearch();
  if (comparable) showFilter();
  showDetails();
})();
