// ---- the picture as a file ----------------------------------------------------------------------------------------------------

const colourOf = (element, what) => getComputedStyle(element)[what];

/** What a pane shows now, as SVG: edges, components, names, the title. */
function svgOf(pane) {
  const { circuit, width, height } = pane, head = 44, shown = circuit.edges.filter((edge) => pane.shows(edge)).sort((a, b) => a.width - b.width);
  const font = { "font-family": "system-ui, sans-serif" }, title = `${circuit.raw.name}: ${plural(shown.length, "edge")}`;
  const parts = [
    el("title", {}, title), el("rect", { width, height: height + head, fill: colours.surface }),
    el("text", { x: 16, y: 19, fill: colours.text, "font-size": 14, "font-weight": 600, ...font }, title),
    el("text", { x: 16, y: 36, fill: colours.muted, "font-size": 11, ...font }, circuit.raw.lead),
  ];
  const drawing = el("g", { transform: `translate(0 ${head})` });
  const crowd = crowding(shown.length, width);
  for (const edge of shown) {
    const [x0, y0, ...rest] = edge.curve.map((x) => x.toFixed(1)), { kind } = edge.port;
    drawing.append(el("path", {
      d: `M${x0} ${y0}C${rest.join(" ")}`, fill: "none", stroke: colours[kind], "stroke-width": edge.width.toFixed(2),
      "stroke-opacity": (circuit.raw.scored ? Math.min(1, crowd * (0.55 + 2.2 * Math.sqrt(edge.share))) : crowd).toFixed(2),
      "stroke-dasharray": DASH[kind].join(" ") || undefined, "data-edge": `${edge.source.name}->${edge.port.name}`,
    }));
  }
  for (const node of circuit.nodes) {
    const { x, y, w, h } = pane.places.get(node.name), button = pane.buttons.get(node.name);
    if (!isOn(circuit, node)) continue;
    drawing.append(el("rect", {
      x: x - w / 2, y: y - h / 2, width: w, height: h, rx: node.kind === "mlp" ? h / 2 : 5, fill: colourOf(button, "backgroundColor"),
      stroke: colourOf(button, "borderTopColor"),
    }));
    drawing.append(el("text", {
      x, y, "text-anchor": "middle", "dominant-baseline": "central", fill: colours.text, "font-size": colourOf(button, "fontSize"),
      "font-family": "ui-monospace, monospace",
    }, button.textContent));
    if (notes.names.has(node.name)) {
      drawing.append(el("text", { x, y: y + h / 2 + 9, "text-anchor": "middle", fill: colours.accent, "font-size": 10, ...font }, notes.names.get(node.name)));
    }
  }
  const svg = el("svg", { width, height: height + head, viewBox: `0 0 ${width} ${height + head}` }, ...parts, drawing);
  return new XMLSerializer().serializeToString(svg);
}

function savePicture(pane, kind) {
  const name = `${pane.circuit.raw.name.replace(/[^\w.-]+/g, "-")}.${kind.toLowerCase()}`, svg = svgOf(pane);
  if (kind === "SVG") return saveFile(name, "image/svg+xml", svg);
  const picture = new Image(), scale = 2;
  picture.onload = () => {
    const canvas = el("canvas", { width: Math.round(picture.width * scale), height: Math.round(picture.height * scale) });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => saveFile(name, "image/png", blob));
  };
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}
