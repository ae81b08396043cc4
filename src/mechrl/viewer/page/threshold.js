// ---- how strong an edge must be to be drawn ----------------------------------------------------------------------------

class Threshold {
  constructor(pane) {
    this.pane = pane;
    const { circuit } = pane;
    this.steps = 40;
    this.shares = circuit.edges.filter((e) => e.stops >= circuit.stops).map((e) => e.share).sort((a, b) => b - a);
    this.range = el("input", {
      type: "range", min: 0, max: this.steps, value: this.steps, step: 1, "aria-label": "Strongest edges",
      oninput: () => { this.set(+this.range.value); showDetails(); },
    });
    this.range.value = this.steps;
    this.readout = el("span", { class: "strongest" });
    this.root = el("label", { class: "threshold" }, el("span", {}, "Strongest"), this.range, this.readout);
    this.root.hidden = !circuit.raw.scored || this.shares.length < 3;
    this.show();
  }

  /** At step s of n the k strongest edges of the whole circuit, k growing by the same factor with every step; at n all there are. */
  set(step) {
    const n = this.shares.length, k = Math.max(1, Math.round(n ** (step / this.steps)));
    this.range.value = step;
    this.pane.circuit.least = step >= this.steps || !n ? 0 : this.shares[k - 1];
    this.show();
    this.pane.draw();
  }

  show() {
    const { circuit } = this.pane, edges = live(circuit, circuit.edges);
    const shown = edges.filter((e) => e.share >= circuit.least);
    const weakest = shown.reduce((least, e) => (Math.abs(e.value) < Math.abs(least) ? e.value : least), Infinity);
    this.readout.textContent = shown.length === edges.length
      ? `all ${plural(edges.length, "edge")}`
      : `${number(shown.length)} of ${plural(edges.length, "edge")}, |${circuit.raw.scored_by}| ≥ ${Math.abs(weakest).toPrecision(2)}`;
    this.range.setAttribute("aria-valuetext", this.readout.textContent);
  }
}
