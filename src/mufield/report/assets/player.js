// The flow of the chosen episode: loading it, and the slider through its steps.

const PLAY_SECONDS = 5; // for a whole episode

// What the colours of a plane, or the height of a line's bars, may span.
const RANGES = {
  1: [["linear", "each step its own"], ["same", "the same for all steps"]],
  2: [["log", "log, the same for all steps"], ["linear", "linear, each step its own"]],
};

const decoded = new Map();

/** The flow of the chosen episode: from the file, or from the server. */
async function loadFlow() {
  const [index, number, run] = [page.run, page.episode, current()];
  if (!number) return { message: run.flow_message || run.message || "There is no episode yet." };
  const key = [index, number, run.identity, run.stamps[number - 1]].join("/");
  if (decoded.has(key)) return decoded.get(key);
  let raw;
  if (page.data.live) {
    const answer = await fetch(`flow/${index}/${number}`);
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    raw = await answer.json();
  } else raw = { space: run.space, ...run.flows[number] };
  if (raw.message) return raw;
  if (decoded.size > 60) decoded.delete(decoded.keys().next().value);
  decoded.set(key, new FlowData(raw));
  return decoded.get(key);
}

let asked = 0;

async function drawFlow() {
  const ticket = ++asked;
  let found;
  try {
    found = await loadFlow();
  } catch (error) {
    found = { message: `The flow could not be loaded (${error.message}); it is asked for again when the server is back.` };
  }
  if (ticket !== asked) return; // something else has been chosen meanwhile
  const ok = found instanceof FlowData;
  page.flow = ok ? found : null;
  byId("field").hidden = !ok;
  byId("flow-message").hidden = ok;
  byId("flow-message").textContent = ok ? "" : found.message;
  for (const id of ["step", "play"]) byId(id).disabled = !ok;
  byId("flow-note").textContent = current().flow_note ?? "";
  byId("flow-note").hidden = !byId("flow-note").textContent;
  if (ok) offerRanges(found.space.dim);
  else pause();
  drawStep();
}

function offerRanges(dim) {
  const select = byId("scale");
  if (select.dataset.dim === String(dim)) return;
  select.dataset.dim = dim;
  select.replaceChildren(...RANGES[dim].map(([value, text]) => html("option", { value }, text)));
}

function drawStep() {
  const slider = byId("step");
  const { flow } = page;
  const last = flow ? flow.space.horizon : 0;
  if (flow) page.frame = Math.min(page.frame, last);
  slider.max = last;
  slider.value = Math.min(page.frame, last);
  const text = flow ? `step ${page.frame} of ${flow.space.horizon}` : "";
  slider.setAttribute("aria-valuetext", text);
  byId("step-text").textContent = text;
  if (flow) field.show(flow, page.frame, byId("scale").value);
}

function drawFields() {
  field.draw();
}

function moveTo(frame) {
  if (!page.flow) return;
  page.frame = Math.min(Math.max(frame, 0), page.flow.space.horizon);
  drawStep();
}

function play() {
  if (!page.flow || page.timer) return;
  const last = page.flow.space.horizon;
  if (page.frame >= last) moveTo(0);
  const delay = Math.min(300, Math.max(30, (1000 * PLAY_SECONDS) / Math.max(last, 1)));
  page.timer = setInterval(() => {
    moveTo(page.frame + 1);
    if (!page.flow || page.frame >= page.flow.space.horizon) pause();
  }, delay);
  drawPlay();
}

function pause() {
  clearInterval(page.timer);
  page.timer = null;
  drawPlay();
}

function drawPlay() {
  byId("play").textContent = page.timer ? "Pause" : "Play";
  byId("play").setAttribute("aria-pressed", String(Boolean(page.timer)));
}
