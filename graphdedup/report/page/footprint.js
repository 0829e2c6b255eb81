// The page of a footprint: one backend's snapshot.

const FIGURES = [
  ["exec_device", "execs, device"], ["exec_host", "execs, host"],
  ["plain_device", "execs without folding, device"], ["plain_host", "execs without folding, host"],
  ["libraries", "driver and libraries"], ["pool", "pool"], ["allocator", "torch's allocator"],
  ["process", "device memory in use"], ["host", "host memory of the process"],
];

function graphsOf(report) {
  return report.group_rows.flatMap((group) =>
    group.members.map((member) => {
      const name = nameOf(member);
      const alone = group.members.length === 1;
      const kind = group.kind === "passed_through" ? "kept" : alone ? "alone" : "shared";
      const hay = [name, member.session, `pool ${member.pool}`, `group ${group.id}`, member.why].join(" ").toLowerCase();
      return { ...member, name, group, kind, hay };
    }),
  );
}

function glance(report) {
  const made = make("section", { id: "glance" });
  const live = report.group_rows.reduce((sum, group) => sum + group.members.length, 0);
  made.append(
    make("h1", { text: `${plural(report.captured, "captured graph")}, ${plural(report.execs, "exec")}` }),
    make("p", { cls: "quiet", text: [report.device, `driver ${report.driver_version}`, `torch ${report.torch_version}`,
      report.tier && `tier ${report.tier}`].filter(Boolean).join(" · ") }),
  );
  if (report.mismatches) {
    made.append(make("p", { cls: "warning", text: `${count(report.mismatches)} of ${count(report.verified)} verified replays were wrong` }));
  }
  const figure = (field, name, note) => {
    const held = report[field];
    return held ? tile(field, name, bytes(held.bytes), note || "", held.source) : null;
  };
  const peak = (held) => (held && held.peak_bytes !== null ? `peak ${bytes(held.peak_bytes)}` : "");
  const ratio = report.launches ? (report.replay_updates / report.launches).toFixed(2) : DASH;
  const tiles = [
    figure("exec_device", "execs, device", peak(report.exec_device)),
    figure("plain_device", "without folding, device"),
    figure("exec_host", "execs, host", peak(report.exec_host)),
    figure("plain_host", "without folding, host"),
    figure("pool", "pools"),
    tile("peak_execs", "execs at peak", count(report.peak_execs), "what a driver keeps memory for"),
    tile("updates_per_replay", "updates per replay", ratio, `${count(report.replay_updates)} in ${plural(report.launches, "replay")}`),
    tile("nodes", "nodes", count(report.nodes), live ? `in ${plural(live, "live graph")}` : "in live graphs"),
  ];
  made.append(make("div", { cls: "tiles" }, ...tiles.filter(Boolean)));
  return made;
}

function ladder(graphs) {
  const rows = rungs(graphs);
  const made = section("Ladder: device bytes of execs by graph",
    "Both are modelled from numbers of nodes, so they can be compared. Folded: an exec counts at the first graph that needs it.");
  made.append(barPair("ladder", rows, "an exec for each graph (modelled)", "folded (modelled)"));
  return made;
}

function where(graphs) {
  const made = section("Where the graphs are", "Pool, session, group, graph. Areas are numbers of nodes; click to go into a part.");
  made.append(treeChart("tree", graphs));
  return made;
}

function updates(report) {
  const drawn = updatesChart("updates", report.group_rows);
  if (!drawn) return null;
  const made = section("Updates", `Replays of live graphs by group, the ${MOST_GROUPS} busiest. An update is paid where another graph of the group ran before.`);
  made.append(drawn);
  const timeline = report.replay_updates_over_time;
  if (timeline.counts.length > 1) {
    made.append(
      make("h3", { text: "over time" }),
      make("p", { cls: "quiet", text: `Updates that replays needed, in spans of ${timeline.seconds_each} s from the first one on.` }),
      timelineChart("timeline", timeline),
    );
  }
  return made;
}

function reasons(report, graphs) {
  const made = section("Why graphs do not fold");
  const rows = [
    { name: "count", of: (row) => count(row.count), kind: "number" },
    { name: "reason", of: (row) => row.reason, kind: "words" },
    { name: "example", of: (row) => row.example, kind: "words" },
  ];
  if (report.refusals.length) made.append(make("h3", { text: "at capture" }), shortTable(rows, report.refusals, 10, "refusals"));
  if (report.unfoldings.length) made.append(make("h3", { text: "at replay" }), shortTable(rows, report.unfoldings, 10, "unfoldings"));
  const alone = report.listed_alone.length
    ? report.listed_alone
    : graphs.filter((one) => one.why).map((one) => ({ graph: `${one.name} (graph ${one.id})`, why: one.why }));
  if (alone.length) {
    const columns = [{ name: "graph", of: (row) => row.graph, kind: "name" }, { name: "why", of: (row) => row.why, kind: "words" }];
    made.append(make("h3", { text: `on their own: ${count(alone.length)}` }), shortTable(columns, alone, 8, "alone"));
  }
  if (made.children.length === 1) made.append(make("p", { cls: "quiet", text: "All fold, or nothing was refused." }));
  return made;
}

function graphTable(graphs) {
  const number = (name, of) => ({ name, kind: "number", of: (row) => count(of(row)), sort: (row) => of(row) ?? -1 });
  const text = (name, kind, of) => ({ name, kind, of, sort: of });
  const columns = [
    text("graph", "name", (row) => row.name), text("session", "", (row) => row.session),
    number("pool", (row) => row.pool), number("nodes", (row) => row.nodes), number("group", (row) => row.group.id),
    number("in group", (row) => row.group.members.length), number("execs", (row) => row.group.execs.length),
    number("replays", (row) => row.replays), number("updates", (row) => row.updates),
    { name: "exec of its own", kind: "number", of: (row) => bytes(row.own_device_bytes), sort: (row) => row.own_device_bytes },
    text("why alone", "words", (row) => row.why),
  ];
  const made = section("Graphs", "Device bytes of an exec of its own are modelled. Click a heading to sort.");
  const kinds = [["all", "all graphs"], ["shared", "that share"], ["alone", "on their own"], ["kept", "passed through"]];
  made.append(searchTable(columns, graphs, kinds));
  return made;
}

function memory(report) {
  const made = section("Memory", "Figures of different kinds are never added.");
  const figures = FIGURES.filter(([field]) => report[field]).map(([field, name]) => ({ name, ...report[field] }));
  made.append(plainTable([
    { name: "", of: (row) => row.name, kind: "name" },
    { name: "now", of: (row) => bytes(row.bytes), kind: "number" },
    { name: "peak", of: (row) => (row.peak_bytes === null ? DASH : bytes(row.peak_bytes)), kind: "number" },
    { name: "", of: (row) => chip(row.source) },
    { name: "how", of: (row) => row.how, kind: "words" },
  ], figures, "figures"));
  const orDash = (value) => (value === null ? DASH : bytes(value));
  if (report.pools.length) {
    made.append(make("h3", { text: "pools" }), shortTable([
      { name: "pool", of: (row) => count(row.id), kind: "number" },
      { name: "graphs", of: (row) => count(row.graphs), kind: "number" },
      { name: "reserved", of: (row) => bytes(row.reserved_bytes), kind: "number" },
      { name: "allocated", of: (row) => orDash(row.allocated_bytes), kind: "number" },
      { name: "inactive", of: (row) => orDash(row.inactive_bytes), kind: "number" },
      { name: "", of: (row) => chip(row.source) },
    ], report.pools, 10, "pools"));
  }
  if (report.stages.length) {
    made.append(make("h3", { text: "stages" }), plainTable([
      { name: "", of: (row) => row.name },
      { name: "used on the device", of: (row) => orDash(row.device_used_bytes), kind: "number" },
      { name: "of that reserved by torch", of: (row) => orDash(row.torch_reserved_bytes), kind: "number" },
      { name: "resident on the host", of: (row) => bytes(row.host_resident_bytes), kind: "number" },
    ], report.stages, "stages"));
  }
  return made;
}

function rest(report) {
  const made = make("div", { cls: "columns" });
  if (report.node_rows.length) {
    const kernels = section("Nodes by kernel");
    kernels.append(shortTable([
      { name: "count", of: (row) => count(row.count), kind: "number" },
      { name: "kind", of: (row) => row.kind },
      { name: "name", of: (row) => make("code", { text: row.name }), kind: "name" },
    ], report.node_rows, 12, "nodes"));
    made.append(kernels);
  }
  if (report.sessions.length) {
    const sessions = section("Sessions");
    sessions.append(shortTable([
      { name: "session", of: (row) => row.name || "(unnamed)", kind: "name" },
      { name: "captured", of: (row) => count(row.captured), kind: "number" },
      { name: "execs", of: (row) => count(row.execs), kind: "number" },
      { name: "seconds", of: (row) => seconds(row.seconds), kind: "number" },
    ], report.sessions, 12, "sessions"));
    made.append(sessions);
  }
  if (report.breaks.length) {
    const breaks = section("Breaks");
    breaks.append(shortTable([
      { name: "segments", of: (row) => count(row.segments), kind: "number" },
      { name: "break", of: (row) => row.name, kind: "name" },
    ], report.breaks, 12, "breaks"));
    made.append(breaks);
  }
  made.append(details(report));
  return made;
}

function details(report) {
  const counters = ["groups", "updates", "launches", "refused", "unfolded", "passed_through", "splits", "evictions",
    "refreshes", "verified", "mismatches", "opaque_nodes"].map((name) => [name.replaceAll("_", " "), count(report[name])]);
  const times = ["walk_seconds", "fold_seconds", "instantiate_seconds"].map((name) => [name.replaceAll("_", " "), seconds(report[name])]);
  const held = report.environment;
  const pairs = (object) => Object.entries(object).map(([name, value]) => `${name}=${value}`).join(", ") || DASH;
  const around = held ? [["graphdedup", held.graphdedup || DASH], ["python", held.python], ["platform", held.platform],
    ["cuda", held.cuda || DASH], ["policy", pairs(held.policy)], ["switches", pairs(held.switches)]] : [];
  const made = section("Details");
  made.append(plainTable([
    { name: "", of: (row) => row[0] }, { name: "", of: (row) => row[1], kind: "words" },
  ], [...counters, ...times, ["fold plan", report.plan_digest || DASH], ...around], "details"));
  return made;
}

function footprintPage(report) {
  const graphs = graphsOf(report);
  const parts = [glance(report)];
  if (graphs.length) parts.push(ladder(graphs), where(graphs), updates(report));
  parts.push(reasons(report, graphs));
  if (graphs.length) parts.push(graphTable(graphs));
  parts.push(memory(report), rest(report));
  return parts.filter(Boolean);
}
