// The page itself: what is chosen, the controls, and news from the server.

const THEMES = ["auto", "light", "dark"];
const COME_BACK = 1000; // milliseconds

const page = {
  data: JSON.parse(byId("data").textContent),
  run: 0,
  episode: 0,
  frame: Infinity, // the end of the episode: at its start most populations stand in one place
  flow: null,
  timer: null,
  shown: new Set(),
};

const current = () => page.data.runs[page.run];
const several = () => page.data.runs.length > 1;

// ---- Charts -------------------------------------------------------------------------------

const learning = new LineChart(byId("learning-chart"), { label: "J by episode", unit: "total reward J", height: 300, onPick: chooseEpisode });
const calibration = new LineChart(byId("calibration-chart"), {
  label: "Coverage by episode", unit: "share inside", height: 200, format: percent, onPick: chooseEpisode,
});
const limits = new LineChart(byId("limits-chart"), {
  label: "Margins by move", unit: "margin, share of the limit", count: "move", height: 200, format: percent,
});
const paths = ["rewards", "entropy"].map((name) => new LineChart(byId(`paths-${name}`), {
  label: `${name} by step`, unit: name === "rewards" ? "reward of the step" : "entropy of the population, nats", count: "step", height: 200,
}));
const readout = (text) => { byId("readout").textContent = text; };
const field = new FieldView(byId("field"), readout);
const diagnostics = PANELS.map((panel) => {
  const host = html("div", { className: "chart" });
  byId("diagnostics-charts").append(html("div", {}, html("h3", {}, panel.title), host));
  return new LineChart(host, { label: panel.title, unit: panel.unit, height: 180, range: [0], onPick: chooseEpisode });
});

function drawCharts() {
  const { runs, level } = page.data;
  const chosen = page.episode;
  learning.set({ ...learningCurves(runs, page.shown), chosen });
  // One successor says nothing of an interval of probabilities: on nodes there is no coverage.
  byId("calibration").hidden = runs.every((run) => run.config?.model === "counts");
  calibration.set({ ...coverageCurves(runs, level), chosen });
  diagnostics.forEach((chart, i) => {
    const curves = diagnosticCurves(runs, PANELS[i]);
    chart.host.parentElement.hidden = PANELS[i].rare && !curves.series.some(({ points }) => points.length);
    chart.set({ ...curves, chosen });
  });
  drawLimits();
  drawPaths();
}

/** As `drawLimits`, where there are shocks. */
function drawPaths() {
  const { rows, name } = current();
  const row = rows.find(({ episode }) => episode === page.episode) ?? rows.at(-1);
  byId("paths").hidden = !row?.paths;
  if (!row?.paths) return;
  const [low, mean, high] = row.paths.value.map(figure);
  const error = figure(row.paths.standard_error);
  byId("paths-text").textContent = `The plan of episode ${row.episode}${several() ? ` of ${name}` : ""} expected J = ${mean}`
    + ` (standard error ${error}), on 90 % of the paths ${low} to ${high}; ${figure(row.value)} was earned.`;
  ["rewards", "entropy"].forEach((quantity, i) => paths[i].set(pathCurves(row.paths, quantity)));
}

/** Also where no flow can be shown, and with it no episode chosen: then of the last one. */
function drawLimits() {
  const { rows, name } = current();
  const row = rows.find(({ episode }) => episode === page.episode) ?? rows.at(-1);
  byId("limits").hidden = !row?.margins;
  if (!row?.margins) return;
  byId("limits-episode").textContent = `episode ${row.episode}${several() ? ` of ${name}` : ""}`;
  limits.set(marginCurves(row.margins));
}

function makeQuantities() {
  page.shown = new Set(several() ? ["value"] : QUANTITIES.map((one) => one.key));
  byId("quantities").replaceChildren(...quantitiesOf(page.data.runs).map((one) => {
    const box = html("input", { type: "checkbox", checked: page.shown.has(one.key) });
    box.addEventListener("change", () => {
      if (box.checked) page.shown.add(one.key);
      else page.shown.delete(one.key);
      drawCharts();
    });
    return html("label", {}, box, one.name);
  }));
}

// ---- What is chosen -----------------------------------------------------------------------

/** Episodes of the chosen run whose flow can be shown. */
function episodesShown() {
  const run = current();
  const numbers = run.rows.map((row) => row.episode);
  return page.data.live ? numbers : numbers.filter((number) => run.flows?.[number]);
}

function chooseRun(index) {
  page.run = index;
  page.episode = episodesShown().at(-1) ?? 0;
  drawAll();
}

function chooseEpisode(number) {
  const shown = episodesShown();
  if (!shown.length) return;
  // In a file some may have been left out: then the nearest.
  page.episode = shown.reduce((a, b) => (Math.abs(b - number) < Math.abs(a - number) ? b : a));
  byId("follow").checked = page.episode === shown.at(-1);
  drawChosen();
}

function shiftEpisode(by) {
  const shown = episodesShown();
  const to = shown[shown.indexOf(page.episode) + by];
  if (to !== undefined) chooseEpisode(to);
}

function drawSelectors() {
  const { runs } = page.data;
  for (const id of ["run-label", "run-key"]) byId(id).hidden = !several();
  byId("run").replaceChildren(...runs.map((run, i) => html("option", { value: i, selected: i === page.run }, run.name)));
  const values = new Map(current().rows.map((row) => [row.episode, row.value]));
  const shown = episodesShown();
  byId("episode").replaceChildren(...shown.map((number) =>
    html("option", { value: number, selected: number === page.episode }, `${number}: J = ${figure(values.get(number))}`)));
  byId("episode").disabled = !shown.length;
  byId("previous").disabled = shown.indexOf(page.episode) <= 0;
  byId("next").disabled = shown.indexOf(page.episode) >= shown.length - 1;
}

// ---- All of it ----------------------------------------------------------------------------

function drawText() {
  const { runs, level } = page.data;
  const names = runs.map((run) => run.name).join(", ");
  const task = new Set(runs.map((run) => run.config?.environment).filter(Boolean));
  byId("title").textContent = `${names}${task.size ? ` · ${[...task].join(", ")}` : ""}`;
  byId("level").textContent = `${Math.round(100 * level)} %`;
  byId("summary").replaceChildren(...tilesOf(current(), several()));
  drawMessages(runs.filter((run) => run.message).map((run) => (several() ? `${run.name}: ${run.message}` : run.message)));
  byId("notes-list").replaceChildren(notesOf(runs));
  byId("rows").replaceChildren(rowsTable(current()));
  byId("config").replaceChildren(...SETTINGS.map(([title, pick]) => comparisonTable(title, runs, pick)));
  byId("versions").replaceChildren(comparisonTable("When the run began", runs, (run) => run.versions));
  for (const id of ["config", "versions"]) byId(id).classList.toggle("several", several());
}

/** Only when they change, because screen readers read them aloud. */
function drawMessages(texts) {
  const host = byId("messages");
  if (host.dataset.texts === JSON.stringify(texts)) return;
  host.dataset.texts = JSON.stringify(texts);
  host.replaceChildren(...texts.map((text) => html("p", { className: "message" }, text)));
}

function drawChosen() {
  drawSelectors();
  drawCharts();
  drawFlow();
}

function drawAll() {
  drawText();
  drawChosen();
}

/** New metrics: the choice stays, unless the newest episode is to be followed. */
function receive(data) {
  page.data = data;
  page.run = Math.min(page.run, data.runs.length - 1);
  const shown = episodesShown();
  if (byId("follow").checked || !shown.includes(page.episode)) page.episode = shown.at(-1) ?? 0;
  drawAll();
}

/** The browser comes back by itself to a server that went away; if it gives up, we do. */
function listen() {
  const source = new EventSource("events");
  const say = (text, lost) => {
    byId("status").textContent = text;
    byId("status").classList.toggle("lost", lost);
  };
  say("connecting …", false);
  source.onopen = () => say("live", false);
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = () => {
    say("waiting for the server …", true);
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, COME_BACK);
  };
}

// ---- Controls -----------------------------------------------------------------------------

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  try {
    localStorage.setItem("mufield-theme", theme);
  } catch { /* some browsers keep nothing for files */ }
  drawFields(); // a canvas does not follow the style
}

function storedTheme() {
  try {
    const theme = localStorage.getItem("mufield-theme");
    return THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

function bindControls() {
  byId("run").addEventListener("change", (event) => chooseRun(Number(event.target.value)));
  byId("episode").addEventListener("change", (event) => chooseEpisode(Number(event.target.value)));
  byId("previous").addEventListener("click", () => shiftEpisode(-1));
  byId("next").addEventListener("click", () => shiftEpisode(1));
  byId("scale").addEventListener("change", drawStep);
  byId("follow").addEventListener("change", (event) => event.target.checked && chooseEpisode(Infinity));
  byId("step").addEventListener("input", (event) => { pause(); moveTo(Number(event.target.value)); });
  byId("play").addEventListener("click", () => (page.timer ? pause() : play()));
  byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(storedTheme()) + 1) % THEMES.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawFields);
  document.addEventListener("keydown", onKey);
}

/** Keys for the whole page, except where a control has a use for them itself. */
function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const { id, tagName } = event.target;
  const slider = id === "step";
  if (tagName === "SELECT") return;
  const takesSpace = !slider && ["INPUT", "BUTTON", "SUMMARY", "A"].includes(tagName);
  const actions = {
    ArrowLeft: slider ? null : () => { pause(); moveTo(page.frame - 1); },
    ArrowRight: slider ? null : () => { pause(); moveTo(page.frame + 1); },
    " ": takesSpace ? null : () => (page.timer ? pause() : play()),
    n: () => shiftEpisode(1),
    p: () => shiftEpisode(-1),
    r: () => several() && chooseRun((page.run + 1) % page.data.runs.length),
  };
  const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

bindControls();
makeQuantities();
byId("follow-label").hidden = !page.data.live;
page.episode = episodesShown().at(-1) ?? 0;
setTheme(storedTheme());
drawAll();
if (page.data.live) listen();
