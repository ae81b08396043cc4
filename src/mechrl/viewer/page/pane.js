// ---- one circuit ----------------------------------------------------------------------------------------------------

/** How dark edges are where there are many of them in little room. */
const crowding = (n, width) => Math.max(0.1, Math.min(0.9, 7 / Math.sqrt(n * Math.max(1, 800 / width))));

class Pane {
  constructor(circuit) {
    this.circuit = circuit;
    const { raw, index } = circuit;
    this.sharedLine = el("p", { class: "shared" });
    const title = el("h2", {}, ...(several ? [el("span", { class: "letter" }, LETTER[index])] : []), raw.name);
    const lead = el("p", { class: "told" }, raw.lead);
    this.base = el("canvas", { class: "base", "aria-hidden": "true" });
    this.over = el("canvas", { "aria-hidden": "true" });
    this.rows = el("div", { "aria-hidden": "true" });
    this.captions = el("div", { "aria-hidden": "true" });
    this.group = el("div", { role: "group", "aria-label": `Components of ${raw.name}; arrow keys move, Enter selects` });
    this.world = el("div", { class: "world" }, this.rows, this.base, this.over, this.captions, this.group);
    this.stage = el("div", { class: "stage" }, this.world);
    this.replay = new Replay(this);
    const notes = raw.notes.map((note) => el("p", { class: "note" }, note));
    this.example = el("p", { class: "example" });
    const tool = (kind) => el("button", { type: "button", title: `Save the picture as ${kind}`, onclick: () => savePicture(this, kind) }, kind);
    const tools = el("span", { class: "tools" }, tool("SVG"), tool("PNG"));
    const header = el("header", {}, title, lead, tools, this.example, ...(several ? [this.sharedLine] : []), ...notes);
    this.threshold = new Threshold(this);
    const foot = el("footer", {}, this.replay.root, this.threshold.root);
    this.root = el("section", { class: "pane", "aria-label": raw.name }, header, this.stage, foot);
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
    const row = Math.max(17, Math.min(150, (this.stage.clientHeight - top - bottom - ends) / circuit.layers));
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
      const [startX, startY, ...rest] = (edge.curve = this.curve(edge));
      edge.path = new Path2D();
      edge.path.moveTo(startX, startY);
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
    // the longer, the further: edges along the spine become arcs inside each other, not one thick line
    const bow = between ? Math.min(this.grid * 0.4, 14 + rise * 0.2) * (edge.source.layer % 2 ? 1 : -1) : 0;
    return [x0, y0, x0 + bow, y0 - pull, x3 + bow, y3 + pull, x3, y3];
  }

  shows(edge) {
    if (!isLive(this.circuit, edge) || edge.share < this.circuit.least) return false;
    if (state.filter === "all" || !comparable) return true;
    return shared.ids.has(edge.id) === (state.filter === "shared");
  }

  /** While the slider moves, the most important edges are drawn; all of them when it rests. */
  draw(moving = false) {
    if (!this.width) return;
    const { circuit, width } = this;
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
      button.classList.toggle("faded", isIn && !weight.has(node));
      button.style.setProperty("--t", isIn && node.kind !== "end" ? Math.sqrt((weight.get(node) || 0) / heaviest).toFixed(2) : 0);
      const role = circuit.raw.known[node.name];
      button.setAttribute("aria-label", `${node.name}${role ? `, ${role[0]}` : ""}, ${counts(circuit, node)}`);
    }
    if (![...this.buttons.values()].some((b) => b.tabIndex === 0)) this.roving("logits");
    for (const { bracket, name } of this.brackets) bracket.classList.toggle("on", fed.has(name));
    const context = this.context(this.base);
    const crowd = crowding(drawn.length, width);
    if (comparable && state.filter === "all") {
      this.stroke(context, drawn.filter((e) => !shared.ids.has(e.id)), crowd * 0.38, 0.75, dashed);
      this.stroke(context, drawn.filter((e) => shared.ids.has(e.id)), Math.min(1, crowd * 1.25), 1.15, dashed);
    } else {
      this.stroke(context, drawn, crowd, 1, dashed);
    }
    this.showNotes();
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
    for (const edge of [...edges].sort((a, b) => a.width - b.width)) {
      const { kind } = edge.port, width = edge.width * scale * Math.min(1, Math.max(0.55, this.width / 800));
      // in a crowd the strong edges keep their colour and the weak ones recede
      context.globalAlpha = this.circuit.raw.scored ? Math.min(1, alpha * (0.55 + 2.2 * Math.sqrt(edge.share))) : alpha;
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
    const nodes = [state.hovered ?? state.chosen ?? []].flat().map((name) => circuit.byName.get(name)).filter(Boolean);
    const edge = state.edge !== null && circuit.edges.find((e) => e.id === state.edge && this.shows(e));
    const edges = edge ? [edge] : [...new Set(nodes.flatMap((node) => [...node.into, ...node.out]))].filter((e) => this.shows(e));
    const near = new Set(nodes);
    for (const e of edges) [e.source, ...e.port.nodes].forEach((n) => near.add(n));
    const quiet = Boolean(edge || nodes.length);
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
    if (best) tip(event.clientX, event.clientY, `${best.source.name} → ${best.port.name}`, described(this.circuit, best));
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
    this.threshold.show();
    showDetails();
  }

  showShared() {
    const only = shared.only[this.circuit.index], all = CIRCUITS.length > 2 ? "shared by all" : "shared";
    this.sharedLine.textContent = `${plural(shared.ids.size, "edge")} ${all}, ${number(only)} only here`;
  }

  /** The prompt, what the model says to it and what the circuit does: the first thing to know. */
  showExample() {
    const { circuit } = this, pair = pairOf(circuit);
    this.example.hidden = !pair;
    if (!pair) return;
    const said = (who, top) => {
      const [token, p] = top[0], kind = pair.answers.includes(token) ? "right" : pair.foils.includes(token) ? "wrong" : "";
      return el("span", { class: `said ${kind}` }, `${who} `, el("b", {}, visible(token)), ` ${p.toFixed(2)}`);
    };
    const prompt = pair.clean.slice(pair.opening).join(""), short = prompt.length > 140 ? `…${prompt.slice(-139)}` : prompt;
    const answer = el("span", { class: "said" }, "answer ", el("b", {}, visible(pair.answers[0])), pair.answers.length > 1 ? " …" : "");
    this.example.replaceChildren(el("q", {}, short), answer, said("model", pair.top.clean), said("circuit", pair.top.circuit[circuit.stop]));
  }
}
