// Small helpers: elements, numbers, decoding. Text from data only ever goes in as text nodes, so
// that nothing in a run's name or notes can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element with properties and children. */
function html(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** An SVG element with attributes and children; `colour` is a CSS variable's name. */
function svg(tag, { colour, ...attributes } = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (colour) element.style.setProperty("--line", `var(${colour})`);
  element.append(...children);
  return element;
}

const byId = (id) => document.getElementById(id);

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number for people: four digits that count. */
function figure(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(2).replace("-", "−");
  const text = Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(4)));
  return text.replace("-", "−");
}

const percent = (value) => (isNumber(value) ? `${figure(Number((100 * value).toFixed(1)))} %` : "–");

/** Round numbers that span a range, about `count` of them. */
function ticksOf(low, high, count, whole = false) {
  const raw = (high - low) / Math.max(count, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= raw * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) {
    ticks.push(Number((k * step).toPrecision(12)));
  }
  return ticks;
}

function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Masses from the 16-bit codes of their roots. */
function decodeMasses({ scale, codes }) {
  const view = new DataView(bytesOf(codes).buffer);
  const masses = new Float32Array(view.byteLength / 2);
  for (let i = 0; i < masses.length; i++) {
    const root = view.getUint16(2 * i, true) / 65535;
    masses[i] = scale * root * root;
  }
  return masses;
}

/** Mean actions from 8-bit codes. */
function decodeActions({ scale, codes }) {
  const signed = new Int8Array(bytesOf(codes).buffer);
  return Float32Array.from(signed, (code) => (scale * code) / 127);
}

/** Calls back once the width of an element has changed. */
function onResize(element, callback) {
  let width = 0;
  new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    requestAnimationFrame(callback);
  }).observe(element);
}
