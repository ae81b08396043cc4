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
    this.root = el("div", { class: "replay" }, this.button, track, this.readout);
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
