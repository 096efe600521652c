// Line charts over episodes, or moves, with a tooltip at the nearest one. Arrow keys move the
// tooltip when a chart has the focus, Enter or a click chooses the episode.

const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];
const MARKERS = ["circle", "square", "triangle", "diamond"];
const DASHES = { solid: "", dashed: "6 4", dotted: "2 3" };
const MOST_MARKERS = 40;

function marker(kind, x, y, size) {
  const s = size;
  const shapes = {
    circle: `M${x - s} ${y}a${s} ${s} 0 1 0 ${2 * s} 0a${s} ${s} 0 1 0 ${-2 * s} 0`,
    square: `M${x - s} ${y - s}h${2 * s}v${2 * s}h${-2 * s}z`,
    triangle: `M${x} ${y - 1.2 * s}l${1.2 * s} ${2.1 * s}h${-2.4 * s}z`,
    diamond: `M${x} ${y - 1.4 * s}l${1.4 * s} ${1.4 * s}l${-1.4 * s} ${1.4 * s}l${-1.4 * s} ${-1.4 * s}z`,
  };
  return shapes[kind] ?? shapes.circle;
}

/** A piece of a line as in the chart, for legends and tooltips. */
function swatch({ colour, dash, marker: kind, onlyMarkers }) {
  const mark = kind ? [svg("path", { d: marker(kind, 15, 6, 3), fill: "var(--line)" })] : [];
  const line = onlyMarkers ? [] : [svg("path", {
    d: "M1 6H29", stroke: "var(--line)", "stroke-width": 2, "stroke-dasharray": DASHES[dash ?? "solid"],
  })];
  return svg("svg", { viewBox: "0 0 30 12", "aria-hidden": "true", colour }, ...line, ...mark);
}

class LineChart {
  /**
   * @param host element to draw into
   * @param options label (for screen readers), unit (of the vertical axis), count (what the
   *   horizontal one counts), height, format (of values), range (values that the axis always
   *   spans), onPick (called with an episode)
   */
  constructor(host, options) {
    this.host = host;
    this.options = { count: "episode", height: 250, format: figure, onPick: () => {}, ...options };
    this.series = [];
    this.references = [];
    this.chosen = null;
    this.at = null;
    this.tip = html("div", { className: "tip", hidden: true });
    this.tip.setAttribute("role", "status");
    this.frame = svg("svg", { tabindex: 0, role: "img", height: this.options.height });
    this.legend = html("ul", { className: "legend" });
    host.append(this.frame, this.tip, this.legend);
    this.frame.addEventListener("pointermove", (event) => this.#point(event));
    this.frame.addEventListener("pointerleave", () => this.#show(null));
    this.frame.addEventListener("blur", () => this.#show(null));
    this.frame.addEventListener("click", () => this.at !== null && this.options.onPick(this.at));
    this.frame.addEventListener("keydown", (event) => this.#key(event));
    onResize(host, () => this.render());
  }

  /**
   * Series have name, colour, dash, marker, points [episode, value] and perhaps a band of
   * [episode, low, high]; references a value.
   */
  set({ series, references = [], chosen = null }) {
    this.series = series.filter((one) => one.points.length);
    this.references = references;
    this.chosen = chosen;
    this.render();
  }

  render() {
    const width = this.host.clientWidth;
    if (!width) return;
    const { height } = this.options;
    this.frame.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.frame.setAttribute("aria-label", this.#describe());
    this.#measure(width, height);
    this.guide = svg("path", { class: "guide", d: "" });
    this.frame.replaceChildren(...this.#axes(width, height), ...this.#chosenBand(), this.guide,
      ...this.#referenceLines(), ...this.series.flatMap((one) => this.#line(one)));
    if (!this.series.length) {
      this.frame.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no value yet"));
    }
    const rows = [...this.series, ...this.references.map(asReference)];
    // A single line is explained by the title.
    this.legend.replaceChildren(...(rows.length > 1 ? rows : []).map((one) => html("li", {}, swatch(one), one.name)));
    this.#show(this.at);
  }

  #describe() {
    const parts = this.series.map((one) => {
      const [episode, value] = one.points.at(-1);
      return `${one.name} ${this.options.format(value)} in ${this.options.count} ${episode}`;
    });
    return `${this.options.label}: ${parts.join("; ") || "no value yet"}`;
  }

  /** Scales from the values to the places. */
  #measure(width, height) {
    const points = this.series.flatMap((one) => one.points);
    this.episodes = [...new Set(points.map(([x]) => x))].sort((a, b) => a - b);
    const edges = this.series.flatMap((one) => (one.band ?? []).flatMap(([, low, high]) => [low, high]));
    const values = [...points.map(([, y]) => y), ...edges, ...this.references.map((one) => one.value), ...(this.options.range ?? [])];
    let low = values.length ? Math.min(...values) : 0;
    let high = values.length ? Math.max(...values) : 1;
    const slack = (high - low || Math.abs(high) || 1) * 0.06;
    const [fixedLow, fixedHigh] = this.options.range ?? [];
    low -= low === fixedLow ? 0 : slack;
    high += high === fixedHigh ? 0 : slack;
    this.yTicks = ticksOf(low, high, Math.max(2, Math.round(height / 40)));
    const longest = Math.max(...this.yTicks.map((y) => this.options.format(y).length), 1);
    const box = { left: 12 + 7 * longest, right: width - 12, top: 20, bottom: height - 34 };
    const [first, last] = [this.episodes[0] ?? 1, Math.max(this.episodes.at(-1) ?? 1, (this.episodes[0] ?? 1) + 1)];
    this.box = box;
    this.x = (episode) => box.left + 8 + ((box.right - box.left - 16) * (episode - first)) / (last - first);
    this.y = (value) => box.bottom - ((box.bottom - box.top) * (value - low)) / (high - low);
    this.xTicks = ticksOf(first, last, Math.max(2, Math.floor((box.right - box.left) / 60)), true);
  }

  #axes(width, height) {
    const { left, right, top, bottom } = this.box;
    const rules = this.yTicks.flatMap((value) => [
      svg("path", { class: "rule", d: `M${left} ${this.y(value)}H${right}` }),
      svg("text", { x: left - 6, y: this.y(value) + 4, "text-anchor": "end" }, this.options.format(value)),
    ]);
    const marks = this.xTicks.map((episode) =>
      svg("text", { x: this.x(episode), y: bottom + 16, "text-anchor": "middle" }, String(episode)));
    return [...rules, ...marks,
      svg("path", { class: "frame", d: `M${left} ${bottom}H${right}` }),
      svg("text", { x: left - 6, y: 10, "text-anchor": "start", "dominant-baseline": "middle" }, this.options.unit ?? ""),
      svg("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, this.options.count)];
  }

  #chosenBand() {
    if (!this.episodes.includes(this.chosen)) return [];
    const x = this.x(this.chosen);
    return [svg("path", { class: "chosen", d: `M${x} ${this.box.top}V${this.box.bottom}` })];
  }

  #referenceLines() {
    return this.references.map((one) => svg("path", {
      class: "line", d: `M${this.box.left} ${this.y(one.value)}H${this.box.right}`,
      colour: "--reference", stroke: "var(--line)", "stroke-dasharray": DASHES.dashed,
    }));
  }

  #line(one) {
    // A gap says that an episode has no value.
    let d = "";
    let before = null;
    for (const [episode, value] of one.points) {
      d += `${before === episode - 1 ? "L" : "M"}${this.x(episode).toFixed(1)} ${this.y(value).toFixed(1)}`;
      before = episode;
    }
    const parts = [];
    if (one.band?.length) {
      const place = (x, y) => `${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`;
      const edge = [...one.band.map(([x, low]) => place(x, low)), ...one.band.toReversed().map(([x, , high]) => place(x, high))];
      parts.push(svg("path", { d: `M${edge.join("L")}Z`, colour: one.colour, fill: "var(--line)", opacity: 0.18 }));
    }
    if (!one.onlyMarkers) {
      parts.push(svg("path", {
        class: "line", d, colour: one.colour, stroke: "var(--line)", "stroke-dasharray": DASHES[one.dash ?? "solid"],
      }));
    }
    if (one.marker && (one.points.length <= MOST_MARKERS || one.onlyMarkers)) {
      const marks = one.points.map(([x, y]) => marker(one.marker, this.x(x), this.y(y), 3.2)).join("");
      parts.push(svg("path", { d: marks, colour: one.colour, fill: "var(--line)" }));
    }
    return parts;
  }

  #point(event) {
    if (!this.episodes.length) return;
    const place = event.clientX - this.frame.getBoundingClientRect().left;
    const distance = (episode) => Math.abs(this.x(episode) - place);
    this.#show(this.episodes.reduce((a, b) => (distance(b) < distance(a) ? b : a)));
  }

  #key(event) {
    if (!this.episodes.length) return;
    const last = this.episodes.length - 1;
    const now = this.episodes.indexOf(this.at);
    const to = { ArrowLeft: now < 0 ? last : Math.max(0, now - 1), ArrowRight: Math.min(last, now + 1), Home: 0, End: last }[event.key];
    if (to !== undefined) this.#show(this.episodes[to]);
    else if (event.key === "Enter" && this.at !== null) this.options.onPick(this.at);
    else if (event.key === "Escape") this.#show(null);
    else return;
    event.preventDefault();
    event.stopPropagation(); // the same keys move the flow's slider elsewhere
  }

  #show(episode) {
    this.at = this.episodes?.includes(episode) ? episode : null;
    this.tip.hidden = this.at === null;
    this.guide?.setAttribute("d", "");
    if (this.at === null) return;
    const x = this.x(this.at);
    this.guide.setAttribute("d", `M${x} ${this.box.top}V${this.box.bottom}`);
    const rows = this.series.flatMap((one) => {
      const point = one.points.find(([at]) => at === this.at);
      return point ? [this.#row(one, point[1], point[2])] : [];
    });
    rows.push(...this.references.map((one) => this.#row(asReference(one), one.value)));
    this.tip.replaceChildren(html("b", {}, `${this.options.count} ${this.at}`), ...rows);
    const width = this.tip.offsetWidth;
    const left = x + 14 + width > this.box.right ? x - 14 - width : x + 14;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${this.box.top}px`;
  }

  #row(one, value, remark = "") {
    const text = this.options.format(value) + (remark ? ` (${remark})` : "");
    return html("div", {}, swatch(one), one.name, html("span", {}, text));
  }
}

const asReference = (one) => ({ name: one.name, colour: "--reference", dash: "dashed" });
