// Charts by plotly. Each is drawn again when the reader's colour scheme changes.

const MOST_RUNGS = 80;
const MOST_LEAVES = 24;
const MOST_GROUPS = 15;
const charts = [];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Text for plotly, which reads a little HTML in labels: here it is to be shown as it stands. */
function shown(text, most = 60) {
  const short = text.length > most ? `${text.slice(0, most - 3)}...` : text;
  return short.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function layout(more) {
  const axis = { gridcolor: colour("line"), zerolinecolor: colour("line"), automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("text"), family: "system-ui, sans-serif", size: 13 },
    margin: { l: 64, r: 8, t: 8, b: 8 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("text") } },
    ...more,
    xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
  };
}

/** A chart in a section; `draw` gives [traces, layout] in the colours of the moment. */
function chart(id, height, draw) {
  const made = make("div", { cls: "chart", id });
  made.style.height = `${height}px`;
  const render = () => {
    const [traces, more] = draw();
    Plotly.react(made, traces, layout(more), { displayModeBar: false, responsive: true });
  };
  charts.push(render);
  return made;
}

function drawCharts() {
  for (const render of charts) render();
}

/** Ladder: what each rung would take with executables of its own, and what the executables take that it is the first to need. */
function rungs(graphs) {
  const found = new Map();
  const founded = new Set();
  for (const graph of [...graphs].sort((one, other) => one.id - other.id)) {
    const key = JSON.stringify([graph.session, graph.label]);
    const rung = found.get(key) || { name: graph.label || "graph", session: graph.session, plain: 0, folded: 0 };
    rung.plain += graph.own_device_bytes;
    if (!founded.has(graph.group.id)) {
      founded.add(graph.group.id);
      rung.folded += graph.own_device_bytes * graph.group.execs.length;
    }
    found.set(key, rung);
  }
  const collator = new Intl.Collator("en", { numeric: true });
  const all = [...found.values()].sort(
    (one, other) => collator.compare(one.session, other.session) || collator.compare(one.name, other.name),
  );
  const step = Math.ceil(all.length / MOST_RUNGS) || 1;
  const merged = [];
  for (let at = 0, end = 0; at < all.length; at = end) {
    while (end < all.length && end < at + step && all[end].session === all[at].session) end += 1;
    const some = all.slice(at, end);
    merged.push({
      name: shown(range(some[0].name, some[some.length - 1].name), 28),
      plain: some.reduce((sum, one) => sum + one.plain, 0),
      folded: some.reduce((sum, one) => sum + one.folded, 0),
    });
  }
  return merged;
}

/** Two labels as one, what both begin with said once: "decode bs=1 to 12". Numbers are not cut. */
function range(first, last) {
  if (first === last) return first;
  let same = 0;
  while (same < first.length && first[same] === last[same]) same += 1;
  while (same > 0 && /\d/.test(first[same - 1])) same -= 1;
  return `${first} to ${last.slice(same)}`;
}

function barPair(id, rows, plainName, foldedName) {
  const places = rows.map((_, index) => index);
  const most = Math.max(...rows.flatMap((row) => [row.plain, row.folded]));
  const [unit, scale] = most < 1e6 ? ["KB", 1e3] : most < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  const bars = (name, of, tint) => ({
    type: "bar", name, x: places, y: rows.map((row) => of(row) / scale), marker: { color: tint },
    hovertext: rows.map((row) => `${row.name}<br>${name}: ${bytes(of(row))}`), hoverinfo: "text",
  });
  return chart(id, 320, () => [
    [bars(plainName, (row) => row.plain, colour("plain")), bars(foldedName, (row) => row.folded, colour("accent"))],
    {
      barmode: "group", bargap: 0.25,
      xaxis: {
        showgrid: false,
        tickvals: places.filter((place) => place % Math.ceil(rows.length / 40) === 0),
        ticktext: rows.map((row) => row.name).filter((_, place) => place % Math.ceil(rows.length / 40) === 0),
      },
      yaxis: { ticksuffix: ` ${unit}`, rangemode: "tozero" },
    },
  ]);
}

/** Pool, session, group, member: a tree of {id, parent, name, value, tint, note}; areas are numbers of nodes. */
function tree(graphs) {
  const parts = new Map();
  const add = (id, parent, name, graph, tint) => {
    const part = parts.get(id) || { id, parent, name, value: 0, graphs: 0, tint };
    part.value += graph.nodes;
    part.graphs += 1;
    parts.set(id, part);
  };
  const leaves = new Map();
  for (const graph of graphs) {
    const pool = `pool ${graph.pool}`;
    const session = JSON.stringify([pool, graph.session]); // names are the runner's: two paths must never read alike
    const alone = graph.group.members.length === 1;
    const group = JSON.stringify([pool, graph.session, alone ? "alone" : graph.group.id]);
    const tint = alone ? "alone" : "accent";
    add("all", "", "all graphs", graph, "panel");
    add(pool, "all", graph.pool ? pool : "pool not known", graph, "panel");
    add(session, pool, graph.session || "(unnamed session)", graph, "panel");
    add(group, session, alone ? "on their own" : `group ${graph.group.id}`, graph, tint);
    const mates = leaves.get(group) || [];
    mates.push({ id: `${group} ${graph.id}`, parent: group, name: graph.name, value: graph.nodes, graphs: 1, tint });
    leaves.set(group, mates);
  }
  const made = [...parts.values()];
  for (const mates of leaves.values()) {
    mates.sort((one, other) => other.value - one.value);
    const rest = mates.splice(MOST_LEAVES);
    made.push(...mates);
    if (rest.length) {
      const value = rest.reduce((sum, one) => sum + one.value, 0);
      const name = `${count(rest.length)} more`;
      made.push({ id: `${rest[0].parent} more`, parent: rest[0].parent, name, value, graphs: rest.length, tint: rest[0].tint });
    }
  }
  return made;
}

function treeChart(id, graphs) {
  const parts = tree(graphs);
  return chart(id, 420, () => [
    [{
      type: "treemap", branchvalues: "total", ids: parts.map((one) => one.id), parents: parts.map((one) => one.parent),
      labels: parts.map((one) => shown(one.name)), values: parts.map((one) => one.value),
      text: parts.map((one) => `${plural(one.graphs, "graph")}, ${plural(one.value, "node")}`),
      textinfo: "label+text", hoverinfo: "label+text", tiling: { pad: 2 }, pathbar: { side: "top" },
      marker: { colors: parts.map((one) => colour(one.tint)), line: { color: colour("ground"), width: 1 } },
      textfont: { color: parts.map((one) => (one.tint === "panel" ? colour("text") : colour("ground"))) },
    }],
    { margin: { l: 0, r: 0, t: 8, b: 8 }, uniformtext: { minsize: 10, mode: "hide" } },
  ]);
}

/** Replays by group, with those apart that had to update the executable. */
function updatesChart(id, groups) {
  const rows = groups
    .map((group) => ({
      name: group.members.length > 1 ? `group ${group.id}, ${count(group.members.length)} graphs` : shown(nameOf(group.members[0]), 36),
      replays: group.members.reduce((sum, one) => sum + (one.replays || 0), 0),
      updates: group.members.reduce((sum, one) => sum + (one.updates || 0), 0),
    }))
    .filter((row) => row.replays)
    .sort((one, other) => other.replays - one.replays)
    .slice(0, MOST_GROUPS)
    .reverse();
  if (!rows.length) return null;
  const bars = (name, of, tint) => ({
    type: "bar", orientation: "h", name, y: rows.map((_, index) => index), x: rows.map(of), marker: { color: tint },
    hovertext: rows.map((row) => `${row.name}<br>${name}: ${count(of(row))}`), hoverinfo: "text",
  });
  return chart(id, 90 + 26 * rows.length, () => [
    [
      bars("launched as it was", (row) => row.replays - row.updates, colour("plain")),
      bars("updated first", (row) => row.updates, colour("accent")),
    ],
    {
      barmode: "stack", bargap: 0.35, xaxis: { tickformat: ",d" },
      yaxis: { tickvals: rows.map((_, index) => index), ticktext: rows.map((row) => row.name) },
    },
  ]);
}

/** Counts over time, one bar for each span. */
function timelineChart(id, timeline) {
  const at = timeline.counts.map((_, index) => index * timeline.seconds_each);
  return chart(id, 200, () => [
    [{
      type: "bar", x: at, y: timeline.counts, width: timeline.seconds_each, offset: 0, marker: { color: colour("accent") },
      hovertext: timeline.counts.map((updates, index) => `from ${at[index]} s: ${plural(updates, "update")}`), hoverinfo: "text",
    }],
    { bargap: 0, margin: { l: 64, r: 8, t: 8, b: 40 }, xaxis: { ticksuffix: " s", showgrid: false }, yaxis: { tickformat: ",d", rangemode: "tozero" } },
  ]);
}
