// From a run's metrics to curves, tiles and tables.

const QUANTITIES = [
  { key: "value", name: "realised, exploring", dash: "solid", marker: "circle", colour: "--c0" },
  { key: "greedy", name: "realised without optimism", dash: "solid", marker: "triangle", colour: "--c2" },
  { key: "optimistic", name: "optimistic plan", dash: "dashed", marker: "square", colour: "--c1" },
  { key: "best", name: "best so far", dash: "dotted", marker: "", colour: "--c3" },
];

/**
 * Panels about how far models and plans could be trusted; coverage has a chart of its own.
 * `zero` names the line at zero; a `rare` panel is left out where no run has such figures.
 */
const PANELS = [
  { title: "Optimism gap", unit: "expected − realised J", zero: "expected = realised", lines: [{ key: "optimism", name: "optimism gap" }] },
  { title: "Spread", unit: "std along the plan, in farthest moves", lines: [{ key: "spread", name: "spread" }] },
  { title: "Hallucinated control", unit: "mean |η| along the plan", lines: [{ key: "control", name: "control" }] },
  { title: "Imagined to realised flow", unit: "W1, in units of the space", lines: [{ key: "w1_end", name: "W1" }] },
  { title: "Confidence band", unit: "β, in standard deviations", lines: [{ key: "beta", name: "β" }] },
  {
    title: "Constraints", unit: "least margin, share of the limit", zero: "the limit", rare: true,
    lines: [{ key: "margin", name: "realised", dash: "solid" }, { key: "assured", name: "assured", dash: "dashed" }],
  },
  { title: "Transitions", unit: "that the plan was based on", lines: [{ key: "transitions", name: "transitions" }] },
  { title: "Time", unit: "seconds", seconds: true },
];

const PARTS = [
  { key: "fit", name: "fit" }, { key: "plan", name: "plan" }, { key: "run", name: "run and measure" },
  { key: "judge", name: "plan without optimism" },
];

/** Quantities that at least one run has, or may have once it begins: not all runs are judged. */
const quantitiesOf = (runs) => QUANTITIES.filter(({ key }) => key !== "greedy"
  || runs.some((run) => !run.rows.length || column(run, key).length));

const column = (run, key) => run.rows.flatMap((row) => (isNumber(row[key]) ? [[row.episode, row[key]]] : []));

const runColour = (index) => COLOURS[index % COLOURS.length];
const runMarker = (index) => MARKERS[index % MARKERS.length];

/** J by episode: colours stand for quantities of one run, or for runs. */
function learningCurves(runs, shown) {
  const several = runs.length > 1;
  const series = runs.flatMap((run, index) => quantitiesOf([run]).filter((one) => shown.has(one.key)).map((one) => ({
    name: several ? `${run.name}, ${one.name}` : one.name,
    colour: several ? runColour(index) : one.colour,
    dash: one.dash,
    marker: several && one.marker ? runMarker(index) : one.marker,
    points: column(run, one.key),
    band: one.key === "optimistic" && !several ? bandOf(run) : [],
  })));
  return { series, references: referencesOf(runs) };
}

/** J of 90 % of the paths of shocks, as the plan of each episode expected it. */
const bandOf = (run) => run.rows.flatMap(({ episode, paths }) => (paths ? [[episode, paths.value[0], paths.value[2]]] : []));

/** What one episode's plan expected of each step over the paths of shocks, and what came. */
function pathCurves(paths, name) {
  const [low, mean, high] = paths[name];
  const points = (values) => values.map((value, step) => [step, value]);
  return { series: [
    { name: "mean of the paths, and 90 % of them", colour: COLOURS[1], marker: MARKERS[1], dash: "dashed", points: points(mean), band: low.map((value, step) => [step, value, high[step]]) },
    { name: "the path that came", colour: COLOURS[0], marker: MARKERS[0], points: points(paths.realised[name]) },
  ] };
}

function referencesOf(runs) {
  const values = new Map();
  for (const run of runs) {
    const value = run.config?.reference;
    if (isNumber(value)) values.set(value, [...(values.get(value) ?? []), run.name]);
  }
  return [...values].map(([value, names]) => ({
    name: runs.length > 1 && values.size > 1 ? `reference of ${names.join(", ")}` : "reference", value,
  }));
}

/** Coverage of each episode as marks, and of all moves so far as a line. */
function coverageCurves(runs, level) {
  const series = runs.flatMap((run, index) => {
    let [inside, all] = [0, 0];
    const [single, pooled] = [[], []];
    run.rows.forEach((row, i) => {
      if (!isNumber(row.coverage)) return;
      const count = run.moves[i];
      const hits = Math.round(row.coverage * count);
      [inside, all] = [inside + hits, all + count];
      single.push([row.episode, row.coverage, `${hits} of ${count}`]);
      if (all) pooled.push([row.episode, inside / all, `${figure(inside)} of ${figure(all)}`]);
    });
    const name = runs.length > 1 ? `${run.name}, ` : "";
    const look = { colour: runColour(index), marker: runMarker(index) };
    return [{ ...look, name: `${name}this episode`, points: single, onlyMarkers: true },
      { ...look, marker: "", name: `${name}all so far`, points: pooled }];
  });
  return { series, references: [{ name: `${Math.round(100 * level)} %`, value: level }] };
}

function diagnosticCurves(runs, panel) {
  const several = runs.length > 1;
  if (panel.seconds) return { series: runs.flatMap((run, index) => secondsOf(run, index, several)) };
  const series = runs.flatMap((run, index) => panel.lines.map((line, i) => ({
    name: several ? `${run.name}${panel.lines.length > 1 ? `, ${line.name}` : ""}` : line.name,
    colour: several ? runColour(index) : COLOURS[i],
    marker: several ? runMarker(index) : MARKERS[i],
    dash: line.dash,
    points: column(run, line.key),
  })));
  return { series, references: panel.zero ? [{ name: panel.zero, value: 0 }] : [] };
}

/** The margins of one episode, move by move; no value where a limit need not hold. */
function marginCurves(margins) {
  const series = Object.entries(margins).map(([name, values], i) => ({
    name,
    colour: COLOURS[i % COLOURS.length],
    marker: MARKERS[i % MARKERS.length],
    points: values.flatMap((value, move) => (isNumber(value) ? [[move + 1, value]] : [])),
  }));
  return { series, references: [{ name: "the limit", value: 0 }] };
}

/** Seconds of the parts of one run's episodes, or the sums of several runs. */
function secondsOf(run, index, several) {
  const points = (pick) => run.rows.flatMap((row) => {
    const value = pick(run.seconds[row.episode] ?? {});
    return isNumber(value) ? [[row.episode, value]] : [];
  });
  const sum = (parts) => (Object.keys(parts).length ? Object.values(parts).reduce((a, b) => a + b) : null);
  if (several) return [{ name: run.name, colour: runColour(index), marker: runMarker(index), points: points(sum) }];
  return PARTS.map(({ key, name }, i) => ({
    name, colour: COLOURS[i], marker: MARKERS[i], dash: ["dotted", "dashed", "solid", "dotted"][i], points: points((parts) => parts[key]),
  })).filter(({ points }, i) => i < 3 || points.length);
}

function tilesOf(run, several) {
  const last = run.rows.at(-1);
  const total = Object.values(run.seconds).flatMap(Object.values).reduce((a, b) => a + b, 0);
  const home = run.rows.filter((row) => !isNumber(row.elsewhere)); // if any, they alone compare
  const best = last && (home.length ? home : run.rows).find((row) => row.value === last.best);
  const tiles = [
    // A real system has no number of episodes that it is to reach.
    [several ? `episodes, ${run.name}` : "episodes", run.told ? `${run.rows.length}` : `${run.rows.length} of ${run.config?.episodes ?? "?"}`],
    ...(run.told ? [["agents, last episode", figure(run.agents)]] : []),
    ["best J" + (best ? `, episode ${best.episode}` : ""), figure(last?.best)],
    ["last J", figure(last?.value)],
    isNumber(last?.regret) ? ["last regret", figure(last.regret)] : ["last W1 at end", figure(last?.w1_end)],
    isNumber(last?.greedy) ? ["last J without optimism", figure(last.greedy)] : ["last optimism gap", figure(last?.optimism)],
    ["last coverage", percent(last?.coverage)],
    ["transitions", figure(last?.transitions)],
    ["time", duration(total)],
  ];
  return tiles.map(([name, value]) => html("div", { className: "tile" }, html("b", {}, value), html("span", {}, name)));
}

function duration(seconds) {
  if (seconds < 59.95) return `${figure(Number(seconds.toFixed(1)))} s`;
  const whole = Math.round(seconds); // first of all, or 119.7 s would be 1 min 60 s
  if (whole < 600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(seconds / 60); // more would not fit into a tile
  if (minutes < 60) return `${minutes} min`;
  return minutes < 600 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.round(minutes / 60)} h`;
}

function notesOf(runs) {
  const items = runs.flatMap((run) => run.rows.flatMap((row) => (row.notes ?? []).map((note) => {
    const who = runs.length > 1 ? `${run.name}, episode ${row.episode}` : `Episode ${row.episode}`;
    return html("li", {}, html("b", {}, `${who}: `), note);
  })));
  return items.length ? html("ul", {}, ...items) : html("p", { className: "quiet" }, "None.");
}

const SETTINGS = [
  ["Run", ({ config, told }) => {
    const { options, model_options: model, planner_options: planner, agents, episodes, ...rest } = config ?? {};
    // Those two are a simulator's.
    return told ? rest : { ...rest, agents, episodes };
  }],
  ["Environment", ({ config }) => config?.options],
  ["Model", ({ config }) => config?.model_options],
  ["Planner", ({ config }) => config?.planner_options],
];

/** One column for each run; what differs between runs is marked. */
function comparisonTable(title, runs, pick) {
  const columns = runs.map((run) => flatten(pick(run)));
  const keys = [...new Set(columns.flatMap((one) => [...one.keys()]))];
  const names = runs.length > 1 ? runs.map((run) => html("th", { scope: "col" }, run.name)) : [];
  const head = names.length ? [html("thead", {}, html("tr", {}, html("td"), ...names))] : [];
  const body = keys.map((key) => {
    const values = columns.map((one) => one.get(key) ?? "–");
    const row = html("tr", { className: new Set(values).size > 1 ? "differs" : "" });
    row.append(html("th", { scope: "row" }, key), ...values.map(settingCell));
    return row;
  });
  return html("div", {}, html("h3", {}, title), html("table", {}, ...head, html("tbody", {}, ...body)));
}

function settingCell(text) {
  // Maps are drawings.
  return html("td", {}, text.includes("\n") ? html("pre", {}, text.replace(/^\n+|\n+$/g, "")) : text);
}

function flatten(values, prefix = "") {
  const found = new Map();
  for (const [name, value] of Object.entries(values ?? {})) {
    if (value && typeof value === "object" && !Array.isArray(value)) {
      for (const [key, inner] of flatten(value, `${prefix}${name}.`)) found.set(key, inner);
    } else found.set(prefix + name, settingText(value));
  }
  return found;
}

function settingText(value) {
  if (typeof value === "string") return value || "–";
  return value === null ? "–" : isNumber(value) ? String(Number(value.toPrecision(6))) : JSON.stringify(value);
}

const ROW_COLUMNS = [
  ["episode", "episode"], ["value", "J"], ["optimistic", "optimistic"], ["optimism", "gap"], ["greedy", "greedy"],
  ["greedy_expected", "greedy expected"], ["best", "best"], ["elsewhere", "elsewhere"],
  ["beta", "β"], ["spread", "spread"], ["control", "|η|"], ["w1_end", "W1 end"],
  ["coverage", "coverage"], ["margin", "margin"], ["assured", "assured"],
  ["transitions", "transitions"], ["regret", "regret"],
];

// Columns of the table that only some runs have.
const RARE = ["greedy", "greedy_expected", "elsewhere", "margin", "assured"];

function rowsTable(run) {
  const columns = ROW_COLUMNS.filter(([key]) => !RARE.includes(key) || column(run, key).length);
  const heads = columns.map(([, name]) => html("th", { scope: "col", className: "number" }, name));
  const body = run.rows.map((row) => html("tr", {}, ...columns.map(([key]) =>
    html("td", { className: "number" }, figure(row[key])))));
  return html("table", {}, html("thead", {}, html("tr", {}, ...heads)), html("tbody", {}, ...body));
}
