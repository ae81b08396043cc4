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
  const ranked = [...raw.edges.importance.keys()].sort((a, b) => Math.abs(raw.edges.importance[b]) - Math.abs(raw.edges.importance[a]));
  const rank = new Map(ranked.map((i, place) => [i, place + 1]));
  const peakOf = (some) => some.reduce((most, i) => Math.max(most, Math.abs(raw.edges.importance[i])), 0);
  const kept = ranked.filter((i) => raw.edges.stops[i] >= stops); // removed edges may score higher: they must not make these thin
  const peak = peakOf(kept) || peakOf(ranked) || 1;
  const edges = raw.edges.id.map((id, i) => {
    const share = Math.min(1, Math.abs(raw.edges.importance[i]) / peak);
    const edge = {
      id, source: nodes[raw.edges.source[i]], port: ports[raw.edges.receiver[i]], value: raw.edges.importance[i],
      share, width: raw.scored ? 0.5 + 4 * Math.sqrt(share) : 0.7 + 1.3 * share ** 3, stops: raw.edges.stops[i], rank: rank.get(i),
    };
    edge.source.out.push(edge);
    for (const node of edge.port.nodes) node.into.push(edge);
    return edge;
  });
  return { raw, index, nodes, byName, layers, heads, kvHeads, group, ports, edges, stops, stop: stops - 1, least: 0 };
}

const circuits = CIRCUITS.map(prepare);
const comparable = several && new Set(CIRCUITS.map((c) => c.receivers.join())).size === 1;
const isLive = (circuit, edge) => edge.stops > circuit.stop;
const live = (circuit, edges) => edges.filter((edge) => isLive(circuit, edge));
const isOn = (circuit, node) => (node.name === "logits" ? node.into : node.out).some((edge) => isLive(circuit, edge));
const counts = (circuit, node) => isOn(circuit, node)
  ? `${plural(live(circuit, node.into).length, "edge")} in, ${live(circuit, node.out).length} out`
  : "not in the circuit";
const roleOf = (name) => circuits.map((c) => c.raw.known[name]).find(Boolean);

/** What an edge's rank is counted in: those that are there at this stop. */
function rankOf(circuit, edge) {
  return 1 + circuit.edges.filter((other) => isLive(circuit, other) && other.rank < edge.rank).length;
}

function valueOf(circuit, edge) {
  if (circuit.raw.scored) return (edge.value < 0 ? "−" : "") + Math.abs(edge.value).toPrecision(2);
  if (edge.stops >= circuit.stops) return "kept";
  return edge.stops ? `until ${number(circuit.raw.stops.size[edge.stops - 1])}` : "on no path";
}
