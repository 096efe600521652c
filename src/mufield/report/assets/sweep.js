// A sweep: parallel coordinates of its runs, which setting matters, and a table sorted by J.

const SWEEP_SIZE = { width: 1000, height: 330, top: 14, bottom: 34, left: 20, right: 90 };
const MOST_PLACES = 7;

/** The setting without its table, as in noise_std. */
function shortName(name) {
  const [table, ...own] = name.split(".");
  return !own.length || (own.length === 1 && own[0] === "name") ? table : own.join(".");
}

/** From a column's values to heights from 0 to 1, and the heights of its ticks by text. */
function axisOf(values, continuous) {
  const numbers = [...new Set(values)].filter(isNumber).sort((a, b) => a - b);
  const numeric = values.every(isNumber);
  if (numeric && (continuous || numbers.length > MOST_PLACES)) {
    const [low, high] = [numbers[0], numbers.at(-1)];
    const height = (value) => (high > low ? (value - low) / (high - low) : 0.5);
    const ticks = high > low ? [0, 1, 2, 3].map((k) => low + ((high - low) * k) / 3) : [low];
    return { height, ticks: ticks.map((value) => [figure(value), height(value)]) };
  }
  const texts = numeric ? numbers.map(settingText) : [...new Set(values.map(settingText))].sort();
  const place = (text) => (texts.length > 1 ? texts.indexOf(text) / (texts.length - 1) : 0.5);
  return { height: (value) => place(settingText(value)), ticks: texts.map((text) => [text, place(text)]) };
}

function coordinates(runs, names) {
  const { width, height, top, bottom, left, right } = SWEEP_SIZE;
  const columns = [...names.map((name) => [shortName(name), runs.map((run) => run.values[name] ?? null)]), ["J", runs.map((run) => run.final)]];
  const x = (column) => left + ((width - left - right) * column) / Math.max(columns.length - 1, 1);
  const y = (share) => height - bottom - share * (height - top - bottom);
  const axes = columns.map(([name, values], i) => axisOf(values, i === columns.length - 1));
  const rules = axes.flatMap(({ ticks }, i) => [
    svg("path", { class: "frame", d: `M${x(i)} ${y(0)}V${y(1)}` }),
    svg("text", { x: x(i), y: height - 8, "text-anchor": i ? "middle" : "start" }, columns[i][0]),
  ]);
  const texts = axes.flatMap(({ ticks }, i) => ticks.map(([text, share]) =>
    svg("text", { class: "over", x: x(i) + 6, y: y(share) + 4 }, text)));
  const lines = runs.map((run, k) => {
    const rank = runs.length > 1 ? 1 - k / (runs.length - 1) : 1;
    const points = columns.map(([, values], i) => {
      // Those that share a value are moved apart a little.
      const moved = i < names.length ? 0.05 * (rank - 0.5) : 0;
      return `${x(i).toFixed(1)} ${y(axes[i].height(values[k]) + moved).toFixed(1)}`;
    });
    return svg("path", {
      class: "line", d: `M${points.join("L")}`, stroke: "var(--line)", "stroke-opacity": 0.15 + 0.6 * rank ** 2,
      colour: k ? "--c0" : "--c1",
    }, svg("title", {}, `J = ${figure(run.final)}: ${names.map((name) => `${shortName(name)} ${settingText(run.values[name] ?? null)}`).join(", ")}`));
  });
  const label = `${runs.length} runs by their settings; the best earns ${figure(runs[0]?.J)}`;
  // The best is drawn last, on top.
  return html("div", { className: "chart" }, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    ...rules, ...lines.reverse(), ...texts));
}

function plainTable(heads, rows) {
  const head = heads.map((name) => html("th", { scope: "col" }, name));
  const body = rows.map((row) => html("tr", {}, ...row.map((text) => html("td", {}, text))));
  return html("table", {}, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...body));
}

function drawSweeps(sweeps) {
  byId("sweeps").hidden = !sweeps.length;
  byId("sweeps-list").replaceChildren(...sweeps.map(({ name, runs: listed, effects }) => {
    const runs = listed.map((run) => ({ ...run, values: Object.fromEntries(run.values.map((each) => [each.name, each.value])) }));
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.values)))];
    const complete = runs.filter((run) => run.state === "complete");
    const matters = effects.map(({ name: setting, share, groups }) => [
      shortName(setting), share === null ? "too few runs" : percent(share),
      ...[groups[0], groups.at(-1)].flatMap((group) => (group ? [settingText(group.value), figure(group.mean)] : ["–", "–"])),
    ]);
    const rows = runs.map((run) => [
      figure(run.final), figure(run.best), ...names.map((each) => settingText(run.values[each] ?? null)), run.state, run.directory,
    ]);
    return html("div", {}, html("h3", {}, `${name}: ${complete.length} of ${runs.length} runs are complete`),
      coordinates(complete, names),
      plainTable(["setting", "share", "best value", "mean J", "worst value", "its mean J"], matters),
      html("details", {}, html("summary", {}, "All runs, by J"),
        html("div", { className: "scroll" }, plainTable(["J", "best", ...names.map(shortName), "state", "run"], rows))));
  }));
}
