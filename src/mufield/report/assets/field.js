// The population at one step: cells of a plane as colours with walls and arrows, or the density
// along a line with the mean action below it, or one bar for each node.

const SHORTEST_ARROW = 0.25; // of the longest: shorter ones are only specks
const MOST_ARROWS = 24; // along a side

class FieldView {
  /** @param readout called with a text about the cell under the pointer, or an empty one */
  constructor(canvas, readout) {
    this.canvas = canvas;
    this.readout = readout;
    this.flow = null;
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("pointerleave", () => this.readout(""));
    onResize(canvas.parentElement, () => this.draw());
  }

  show(flow, frame, scale) {
    Object.assign(this, { flow, frame, scale });
    this.draw();
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth;
    if (!this.flow || !width) return;
    const plane = this.flow.space.dim === 2;
    this.#place(width, plane);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.pen = this.canvas.getContext("2d");
    this.pen.scale(ratio, ratio);
    this.pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const style = getComputedStyle(document.documentElement);
    this.colour = (name) => style.getPropertyValue(name);
    if (plane) this.#drawPlane();
    else this.#drawLine();
    this.canvas.setAttribute("aria-label", this.#describe());
  }

  /** Where the picture is on the canvas. */
  #place(width, plane) {
    const { lower, upper, shape } = this.flow.space;
    if (!plane) {
      this.height = 420;
      this.box = { left: 52, top: 22, width: width - 64, height: 240 };
      this.below = { top: 300, height: 82 };
      return;
    }
    const aspect = (upper[1] - lower[1]) / (upper[0] - lower[0]);
    const room = width - 34 - 100;
    const wide = Math.min(room, 460 / aspect);
    // Whole pixels for each cell, so that no seams show.
    const cell = Math.max(1, Math.floor(wide / shape[0]));
    const tall = Math.max(1, Math.round((cell * shape[0] * aspect) / shape[1]));
    const box = { left: 34, top: 10, width: cell * shape[0], height: tall * shape[1], cell, tall };
    box.left += Math.max(0, Math.floor((room - box.width) / 2));
    this.box = box;
    this.height = box.height + 10 + 36;
  }

  #drawPlane() {
    const { pen, box, flow } = this;
    const range = colourRange(flow, this.frame, this.scale);
    const [, rows] = flow.space.shape;
    const mass = flow.mass(this.frame);
    [...flow.space.walls].forEach((digit, cell) => {
      const x = box.left + Math.floor(cell / rows) * box.cell;
      const y = box.top + (rows - 1 - (cell % rows)) * box.tall; // upwards
      if (digit === "1") this.#wall(x, y, box.cell, box.tall);
      else {
        pen.fillStyle = viridis(range.share(mass[flow.index.get(cell)]));
        pen.fillRect(x, y, box.cell, box.tall);
      }
    });
    this.#arrows(mass);
    this.#planeAxes();
    this.#colourBar(range);
  }

  /** Hatched, because plain dark grey is too near to the dark end of the colours. */
  #wall(x, y, width, height) {
    const { pen } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width, height);
    pen.clip();
    pen.fillStyle = this.colour("--wall");
    pen.fillRect(x, y, width, height);
    pen.strokeStyle = this.colour("--hatch");
    pen.beginPath();
    const first = Math.ceil((x + y) / 7) * 7; // the same lines across cells
    for (let c = first; c < x + y + width + height; c += 7) {
      pen.moveTo(c - y, y);
      pen.lineTo(c - y - height, y + height);
    }
    pen.stroke();
    pen.restore();
  }

  #arrows(mass) {
    const { flow, box } = this;
    const [columns, rows] = flow.space.shape;
    // On fine grids every arrow stands for a block of cells, or they would be too small to see.
    const stride = Math.ceil(Math.max(columns, rows) / MOST_ARROWS);
    const reach = stride * Math.min(box.cell, box.tall);
    flow.free.forEach((cell, k) => {
      const action = flow.action(this.frame, k);
      const [x, y] = [Math.floor(cell / rows), cell % rows];
      const middle = stride >> 1;
      if (!action || mass[k] <= VISIBLE_SHARE / flow.cells) return;
      if (x % stride !== middle || y % stride !== middle) return;
      const length = Math.hypot(...action);
      if (length < SHORTEST_ARROW * flow.unit) return;
      const centre = [box.left + (x + 0.5) * box.cell, box.top + (rows - y - 0.5) * box.tall];
      this.#arrow(centre, Math.atan2(-action[1], action[0]), (reach * length) / flow.unit, reach);
    });
  }

  #arrow([x, y], angle, length, reach) {
    const { pen } = this;
    const half = length / 2;
    const shaft = 0.06 * reach;
    const head = Math.min(0.42 * reach, 0.75 * length);
    pen.save();
    pen.translate(x, y);
    pen.rotate(angle);
    pen.beginPath();
    pen.moveTo(-half, -shaft);
    pen.lineTo(half - head, -shaft);
    pen.lineTo(half - head, -0.5 * head);
    pen.lineTo(half, 0);
    pen.lineTo(half - head, 0.5 * head);
    pen.lineTo(half - head, shaft);
    pen.lineTo(-half, shaft);
    pen.closePath();
    // Black with a white edge can be seen on every colour.
    pen.lineWidth = 2;
    pen.strokeStyle = "white";
    pen.stroke();
    pen.fillStyle = "black";
    pen.fill();
    pen.restore();
  }

  #planeAxes() {
    const { pen, box, flow } = this;
    const { lower, upper } = flow.space;
    pen.strokeStyle = this.colour("--edge");
    pen.strokeRect(box.left - 0.5, box.top - 0.5, box.width + 1, box.height + 1);
    pen.fillStyle = this.colour("--quiet");
    pen.textAlign = "center";
    for (const tick of ticksOf(lower[0], upper[0], 6)) {
      pen.fillText(figure(tick), box.left + (box.width * (tick - lower[0])) / (upper[0] - lower[0]), box.top + box.height + 16);
    }
    pen.fillText("x", box.left + box.width / 2, box.top + box.height + 32);
    pen.fillText("y", box.left - 29, box.top + box.height / 2);
    pen.textAlign = "right";
    for (const tick of ticksOf(lower[1], upper[1], 6)) {
      pen.fillText(figure(tick), box.left - 6, box.top + box.height - (box.height * (tick - lower[1])) / (upper[1] - lower[1]) + 4);
    }
  }

  #colourBar(range) {
    const { pen, box } = this;
    const [x, width] = [box.left + box.width + 16, 14];
    const top = box.top + 18;
    const height = box.height - 18;
    for (let i = 0; i < height; i++) {
      pen.fillStyle = viridis(1 - i / (height - 1));
      pen.fillRect(x, top + i, width, 1.5);
    }
    pen.fillStyle = this.colour("--quiet");
    pen.textAlign = "left";
    pen.fillText(this.flow.words.bar, x, box.top + 8);
    const count = Math.max(2, Math.min(6, Math.floor(height / 40)));
    for (let i = 0; i <= count; i++) {
      const share = i / count;
      const text = Number(range.at(share).toPrecision(2));
      // Ends of the log range stand for all that is thinner or denser.
      const sign = this.scale !== "log" || (i > 0 && i < count) ? "" : i ? "≥ " : "≤ ";
      pen.fillText(sign + figure(text), x + width + 5, top + height * (1 - share) + 4);
    }
  }

  #drawLine() {
    const { pen, box, flow } = this;
    const { lower, upper, shape, names } = flow.space;
    const mass = flow.mass(this.frame);
    const own = mass.reduce((a, b) => Math.max(a, b), 0);
    const high = (this.scale === "same" ? flow.largest() : own) || 1;
    const step = box.width / shape[0];
    const place = (cell) => box.left + cell * step;
    const wide = names ? 0.7 * step : step + 0.3; // nodes stand apart
    pen.fillStyle = this.colour("--quiet");
    pen.textAlign = "left";
    pen.fillText(flow.words.line, 4, 12);
    this.#ticks(0, (1.05 * high) / flow.words.over, box, 4);
    [...flow.space.walls].forEach((digit, cell) => {
      if (digit === "1") return this.#wall(place(cell), box.top, step, box.height);
      const tall = (box.height * mass[flow.index.get(cell)]) / (1.05 * high);
      pen.fillStyle = this.colour("--bar");
      pen.fillRect(place(cell + 0.15 * !!names), box.top + box.height - tall, wide, tall);
      pen.fillStyle = this.colour("--bar-edge");
      pen.fillRect(place(cell + 0.15 * !!names), box.top + box.height - tall - 0.7, wide, 1.4);
    });
    pen.textAlign = "center";
    pen.fillStyle = this.colour("--quiet");
    const floor = flow.actions ? this.below.top + this.below.height : box.top + box.height;
    const stride = names && Math.ceil((8 + Math.max(...names.map((name) => pen.measureText(name).width))) / step);
    names?.forEach((name, node) => node % stride || pen.fillText(name, place(node + 0.5), floor + 16));
    for (const tick of names ? [] : ticksOf(lower[0], upper[0], 8)) {
      pen.fillText(figure(tick), box.left + (box.width * (tick - lower[0])) / (upper[0] - lower[0]), floor + 16);
    }
    pen.fillText(names ? "node" : "x", box.left + box.width / 2, floor + 32);
    if (flow.actions) this.#lineActions(mass, place, step);
  }

  /** Mean actions as a line, thick where there is mass, with arrows that say where it goes. */
  #lineActions(mass, place, step) {
    const { pen, flow, below, box } = this;
    const most = flow.actions.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
    const frame = { left: box.left, width: box.width, top: below.top, height: below.height };
    pen.textAlign = "left";
    pen.fillText("mean action", 4, below.top - 10);
    this.#ticks(-most, most, frame, 2);
    const height = (value) => below.top + (below.height * (most - value)) / (2 * most);
    pen.strokeStyle = this.colour("--c1");
    const stride = Math.ceil(flow.cells / 40);
    flow.free.forEach((cell, k) => {
      const action = flow.action(this.frame, k);
      if (!action) return;
      const visible = mass[k] > VISIBLE_SHARE / flow.cells;
      pen.lineWidth = visible ? 2.5 : 1;
      pen.globalAlpha = visible ? 1 : 0.4;
      pen.beginPath();
      pen.moveTo(place(cell), height(action[0]));
      pen.lineTo(place(cell) + step, height(action[0]));
      const after = flow.index.has(cell + 1) ? flow.action(this.frame, k + 1) : null;
      if (after) pen.lineTo(place(cell) + step, height(after[0]));
      pen.stroke();
      if (visible && k % stride === stride >> 1 && Math.abs(action[0]) > 0.1 * most) {
        this.#chevron(place(cell) + step / 2, height(0), Math.sign(action[0]));
      }
    });
    pen.globalAlpha = 1;
  }

  #chevron(x, y, way) {
    const { pen } = this;
    pen.fillStyle = this.colour("--text");
    pen.beginPath();
    pen.moveTo(x + 4 * way, y);
    pen.lineTo(x - 3 * way, y - 4);
    pen.lineTo(x - 3 * way, y + 4);
    pen.fill();
  }

  #ticks(low, high, box, count) {
    const { pen } = this;
    for (const tick of ticksOf(low, high, count)) {
      const y = box.top + (box.height * (high - tick)) / (high - low);
      pen.fillStyle = this.colour("--grid");
      pen.fillRect(box.left, y - 0.5, box.width, 1);
      pen.fillStyle = this.colour("--quiet");
      pen.textAlign = "right";
      pen.fillText(figure(tick), box.left - 6, y + 4);
    }
  }

  #describe() {
    const { flow, frame } = this;
    const mass = flow.mass(frame);
    const k = mass.indexOf(mass.reduce((a, b) => Math.max(a, b), 0));
    return `Step ${frame} of ${flow.space.horizon}. ${flow.describe(mass[k], this.#cellText(flow.free[k]))}`;
  }

  #cellText(cell) {
    const { shape, lower, names } = this.flow.space;
    if (names) return `node ${names[cell]}`;
    const place = shape.length === 1 ? [cell] : [Math.floor(cell / shape[1]), cell % shape[1]];
    return place.map((c, axis) => {
      const from = lower[axis] + c * this.flow.size[axis];
      return `${"xy"[axis]} ${figure(from)} to ${figure(from + this.flow.size[axis])}`;
    }).join(", ");
  }

  #point(event) {
    if (!this.flow || !this.box) return;
    const frame = this.canvas.getBoundingClientRect();
    const { shape } = this.flow.space;
    const u = (event.clientX - frame.left - this.box.left) / this.box.width;
    const v = (event.clientY - frame.top - this.box.top) / this.box.height;
    if (u < 0 || u >= 1 || v < 0 || v >= 1) return this.readout("");
    const x = Math.floor(u * shape[0]);
    const cell = shape.length === 1 ? x : x * shape[1] + (shape[1] - 1 - Math.floor(v * shape[1]));
    const k = this.flow.index.get(cell);
    if (k === undefined) return this.readout(`${this.#cellText(cell)}: wall`);
    const action = this.flow.action(this.frame, k);
    const goes = action ? `, mean action ${action.map((a) => figure(Number(a.toFixed(2)))).join(", ")}` : "";
    this.readout(`${this.#cellText(cell)}: ${this.flow.words.cell} ${figure(this.flow.mass(this.frame)[k])}${goes}`);
  }
}
