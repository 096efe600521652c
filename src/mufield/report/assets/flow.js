// The flow of an episode, decoded, and the colours of masses.

// Viridis at 33 places; between them colours are mixed.
const VIRIDIS = (
  "440154 470d60 48186a 482374 472d7b 453781 424086 3e4989 3b528b 375b8d 33638d 2f6b8e 2c728e " +
  "297a8e 26828e 23898e 21918c 1f988b 1fa088 22a785 28ae80 32b67a 3fbc73 4ec36b 5ec962 70cf57 " +
  "84d44b 98d83e addc30 c2df23 d8e219 ece51b fde725"
).split(" ").map((code) => [0, 2, 4].map((i) => parseInt(code.slice(i, i + 2), 16)));

const VISIBLE_SHARE = 0.1; // of an evenly spread population's cell: less counts as empty
const CROWDED_SHARE = 10; // of the same: more has one colour on the log scale

function viridis(share) {
  const place = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  const mix = VIRIDIS[low].map((c, i) => Math.round(c + (place - low) * (VIRIDIS[low + 1][i] - c)));
  return `rgb(${mix.join(" ")})`;
}

/** A flow as the page got it, decoded: masses and actions by step and free cell. */
class FlowData {
  constructor({ space, mass, actions, unit }) {
    this.space = space;
    this.unit = unit;
    // Free cells in row-major order, as all vectors over the space have them.
    this.free = [...space.walls].flatMap((digit, cell) => (digit === "0" ? [cell] : []));
    this.cells = this.free.length;
    this.masses = decodeMasses(mass);
    this.actions = actions ? decodeActions(actions) : null;
    this.size = space.upper.map((high, axis) => (high - space.lower[axis]) / space.shape[axis]);
    const line = space.names ? "mass" : "density";
    this.words = { cell: "mass", bar: "mass of a cell", line, over: this.size[0] };
    this.index = new Map(this.free.map((cell, k) => [cell, k]));
  }

  mass(frame) {
    return this.masses.subarray(frame * this.cells, (frame + 1) * this.cells);
  }

  /** The mean action in a cell, or null: at the end nobody acts. */
  action(frame, k) {
    const axes = this.space.dim;
    const at = (frame * this.cells + k) * axes;
    if (!this.actions || at + axes > this.actions.length) return null;
    return Array.from(this.actions.subarray(at, at + axes));
  }

  describe(mass, where) {
    return `Distribution of the population; the densest cell, ${where}, holds ${percent(mass)}`;
  }

  largest() {
    this.most ??= this.masses.reduce((a, b) => Math.max(a, b), 0);
    return this.most;
  }
}

/** How masses become shares of the colour range. */
function colourRange(flow, frame, kind) {
  if (kind === "linear") {
    const high = flow.mass(frame).reduce((a, b) => Math.max(a, b), 0) || 1;
    return { low: 0, high, share: (m) => m / high, at: (s) => s * high };
  }
  const high = Math.min(flow.largest() || 1, CROWDED_SHARE / flow.cells);
  const low = Math.min(VISIBLE_SHARE / flow.cells, 0.1 * high);
  const span = Math.log(high / low);
  return { low, high, share: (m) => (m > low ? Math.log(m / low) / span : 0), at: (s) => low * Math.exp(s * span) };
}
