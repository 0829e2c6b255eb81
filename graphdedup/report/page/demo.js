// The page of a demo run.

function demoPage(result) {
  const modes = Object.entries(result.modes);
  const wrong = modes.reduce((sum, [, mode]) => sum + mode.mismatches + (mode.unfolded_mismatches || 0), 0);
  const compared = modes.reduce((sum, [, mode]) => sum + mode.compared + (mode.unfolded_compared || 0), 0);
  const good = !wrong && compared > 0;
  const sum = (name) => modes.reduce((total, [, mode]) => total + mode[name], 0);
  const head = make("section", { id: "glance" },
    make("h1", { text: `${plural(sum("captured"), "captured graph")}, ${plural(sum("execs"), "exec")}` }),
    make("p", { cls: "quiet", text: `${result.device} · driver ${result.driver_version} · torch ${result.torch_version} · tier ${result.tier}` }),
    make("p", { cls: good ? "" : "warning", text: good
      ? `${plural(compared, "replay")} equal eager bit for bit.`
      : `${count(wrong)} of ${count(compared)} replays differ from eager.` }));
  const source = (mode) => (mode.bytes_source === "modelled" ? "modelled" : "measured_device");
  const tiles = modes.flatMap(([name, mode]) => [
    tile(`${name}.captured`, `${name}: graphs and execs`, `${count(mode.captured)} / ${count(mode.execs)}`, `${plural(mode.sizes.length, "batch size")}`),
    tile(`${name}.exec_device_bytes`, `${name}: execs, device`, bytes(mode.exec_device_bytes),
      mode.unfolded_captured === null ? "" : `without folding ${bytes(mode.unfolded_exec_device_bytes)}`, source(mode)),
    tile(`${name}.pool_bytes`, `${name}: pool`, bytes(mode.pool_bytes), "measured by the allocator"),
  ]);
  head.append(make("div", { cls: "tiles" }, ...tiles));
  const parts = [head];
  const both = modes.filter(([, mode]) => mode.unfolded_exec_device_bytes !== null && mode.exec_device_bytes !== null);
  if (both.length) {
    const rows = both.map(([name, mode]) => ({ name, plain: mode.unfolded_exec_device_bytes, folded: mode.exec_device_bytes }));
    const made = section("Device bytes of execs", both.map(([name, mode]) => `${name}: ${mode.bytes_source}`).join("; "));
    made.append(barPair("ladder", rows, "without folding", "folded"));
    parts.push(made);
  }
  parts.push(demoTable(modes), demoDetails(result, modes));
  return parts;
}

function demoTable(modes) {
  const whole = (name, field) => [name, (mode) => count(mode[field])];
  const size = (name, field) => [name, (mode) => (mode[field] === null ? DASH : bytes(mode[field]))];
  const time = (name, field) => [name, (mode) => seconds(mode[field])];
  const rows = [
    whole("captured graphs", "captured"), whole("execs", "execs"), whole("execs at peak", "peak_execs"), whole("groups", "groups"),
    whole("segments per graph", "segments_per_graph"), whole("nodes", "nodes"), whole("replays compared", "compared"),
    whole("mismatches", "mismatches"), whole("updates", "updates"), whole("launches", "launches"), whole("refused", "refused"),
    whole("un-folded at replay", "unfolded"), whole("passed through", "passed_through"),
    size("exec bytes, device", "exec_device_bytes"), size("exec bytes, host", "exec_host_bytes"), size("pool bytes", "pool_bytes"),
    time("capture seconds", "capture_seconds"), time("fold seconds", "fold_seconds"),
    size("without folding: exec bytes, device", "unfolded_exec_device_bytes"),
    size("without folding: exec bytes, host", "unfolded_exec_host_bytes"), time("without folding: seconds", "unfolded_seconds"),
    whole("without folding: replays compared", "unfolded_compared"), whole("without folding: mismatches", "unfolded_mismatches"),
  ];
  const columns = [
    { name: "", of: (row) => row[0], kind: "name" },
    ...modes.map(([name, mode]) => ({ name, of: (row) => row[1](mode), kind: "number" })),
  ];
  const made = section("Figures", modes.map(([name, mode]) => `${name}: bytes of execs ${mode.bytes_source}, ${mode.bytes_how}.`).join(" "));
  made.append(plainTable(columns, rows, "demo"));
  made.lastChild.style.maxWidth = `${300 + 160 * modes.length}px`;
  return made;
}

function demoDetails(result, modes) {
  const made = section("Details");
  const refusals = modes.flatMap(([name, mode]) => mode.refusals.map((row) => ({ name, ...row })));
  if (refusals.length) {
    made.append(make("h3", { text: "refusals" }), shortTable([
      { name: "mode", of: (row) => row.name }, { name: "count", of: (row) => count(row.count), kind: "number" },
      { name: "reason", of: (row) => row.reason, kind: "words" }, { name: "example", of: (row) => row.example, kind: "words" },
    ], refusals, 10, "refusals"));
  }
  const model = Object.entries(result.model).map(([name, value]) => `${name} ${typeof value === "number" ? count(value) : value}`);
  made.append(plainTable([{ name: "", of: (row) => row[0] }, { name: "", of: (row) => row[1], kind: "words" }],
    [["command", make("code", { text: result.command })], ["model", model.join(", ")], ["seed", String(result.seed)]], "details"));
  return made;
}
