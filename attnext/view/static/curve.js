/* Nadaraya-Watson kernel regression: a curve, and points that can be dragged. */

import { short, strength } from "./colour.js";
import { draw, make, replace } from "./dom.js";
import { slice } from "./tensor.js";

const [WIDE, HIGH, EDGE] = [640, 280, 36];
const STEP = 1 / 50; // step of an arrow key, as a fraction of the range

/** True if a request is a kernel regression: queries, keys and values of one number each. */
export function isCurve({ arrays, function: name }) {
  if (name === "nadaraya_watson") {
    return true;
  }
  const single = (array) => array?.shape.length === 2 && array.shape[1] === 1;
  const given = [arrays.queries, arrays.keys, arrays.values];
  return name === "gaussian_attention" && given.every(single);
}

export class Curve {
  constructor(say, { drag, point, key }) {
    Object.assign(this, { say, drag, point, key });
    this.svg = draw("svg", {
      viewBox: `0 0 ${WIDE} ${HIGH}`,
      role: "group",
      "aria-label": say.curve,
      class: "curve-svg",
    });
    this.path = draw("path", { class: "fit" });
    this.cursor = draw("g", { class: "cursor" });
    this.axes = draw("g", { class: "axes", "aria-hidden": "true" });
    this.dots = draw("g", { class: "dots" });
    this.svg.append(this.axes, this.cursor, this.path, this.dots);
    const caption = make("figcaption", {}, say.curve);
    this.element = make("figure", { class: "curve", hidden: "" }, caption, this.svg);
    this.svg.addEventListener("pointerdown", (event) => this.onDown(event));
    this.svg.addEventListener("pointermove", (event) => this.onMove(event));
    this.svg.addEventListener("pointerup", () => this.onUp());
    this.svg.addEventListener("pointercancel", () => this.onUp());
  }

  update(state, frame, shown) {
    this.element.hidden = !shown;
    if (!shown) {
      return;
    }
    const { arrays } = state.request;
    this.names = "x" in arrays ? ["x", "x_train", "y_train"] : ["queries", "keys", "values"];
    const [x, keys, values] = this.names.map((name) => arrays[name]);
    this.state = state;
    const output = state.result.steps.findLast((step) => step.key === "output");
    const fit = slice(output, frame, state.at);
    const at = Math.min(state.at.row, x.data.length - 1);
    const order = [...x.data.keys()].sort((a, b) => x.data[a] - x.data[b]);
    if (this.held === undefined) {
      this.measure(x.data, keys.data, values.data);
      this.drawAxes();
    }
    const corners = order
      .filter((i) => Number.isFinite(fit.number(i, 0)))
      .map((i) => `${this.right(x.data[i])},${this.up(fit.number(i, 0))}`);
    this.path.setAttribute("d", corners.length ? `M${corners.join("L")}` : "");
    this.drawCursor(x.data[at], fit.number(at, 0));
    this.drawDots(keys, values, slice(frame.weights, frame, state.at), at);
  }

  // ---- from numbers to pixels and back ---------------------------------------------------------

  measure(x, keys, values) {
    this.x = range([...x, ...keys]);
    this.y = range([...values]);
  }

  right(x) {
    return EDGE + ((x - this.x[0]) / (this.x[1] - this.x[0])) * (WIDE - 2 * EDGE);
  }

  up(y) {
    return HIGH - EDGE - ((y - this.y[0]) / (this.y[1] - this.y[0])) * (HIGH - 2 * EDGE);
  }

  /** Return the point under a pointer. */
  under(event) {
    const point = new DOMPoint(event.clientX, event.clientY);
    const { x, y } = point.matrixTransform(this.svg.getScreenCTM().inverse());
    return [
      this.x[0] + ((x - EDGE) / (WIDE - 2 * EDGE)) * (this.x[1] - this.x[0]),
      this.y[0] + ((HIGH - EDGE - y) / (HIGH - 2 * EDGE)) * (this.y[1] - this.y[0]),
    ];
  }

  // ---- drawing ---------------------------------------------------------------------------------

  drawAxes() {
    const below = ticks(this.x).map((x) =>
      draw("text", { x: this.right(x), y: HIGH - 14, "text-anchor": "middle" }, short(x)),
    );
    const beside = ticks(this.y).flatMap((number) => {
      const y = this.up(number);
      const rule = draw("line", { x1: EDGE, x2: WIDE - EDGE, y1: y, y2: y });
      return [rule, draw("text", { x: EDGE - 6, y: y + 4, "text-anchor": "end" }, short(number))];
    });
    replace(this.axes, ...beside, ...below);
  }

  drawCursor(x, y) {
    const place = this.right(x);
    const handle = draw("circle", {
      cx: place,
      cy: this.up(y),
      r: 6,
      class: "query",
      role: "slider",
      tabindex: 0,
      "aria-label": this.say.query,
      "aria-valuenow": x,
      "aria-valuemin": this.x[0],
      "aria-valuemax": this.x[1],
      "aria-valuetext": this.say.queryAt(short(x), short(y)),
    });
    handle.addEventListener("keydown", (event) => this.onQueryKey(event));
    const focused = this.cursor.contains(document.activeElement);
    const rule = draw("line", { x1: place, x2: place, y1: EDGE / 2, y2: HIGH - EDGE });
    replace(this.cursor, rule, handle);
    if (focused) {
      handle.focus();
    }
  }

  drawDots(keys, values, weights, at) {
    const { dots } = this;
    while (dots.children.length > keys.data.length) {
      dots.lastChild.remove();
    }
    let top = 0;
    for (let j = 0; j < keys.data.length; j++) {
      top = Math.max(top, weights.number(at, j) || 0);
    }
    for (let j = 0; j < keys.data.length; j++) {
      const dot = dots.children[j] ?? dots.appendChild(this.dot(j));
      const [x, y] = [keys.data[j], values.data[j]];
      const part = top > 0 && !weights.masked(at, j) ? weights.number(at, j) / top : 0;
      dot.setAttribute("cx", this.right(x));
      dot.setAttribute("cy", this.up(y));
      dot.setAttribute("r", 4 + 4 * part);
      dot.setAttribute("fill-opacity", strength(part));
      dot.setAttribute("aria-valuenow", x);
      dot.setAttribute("aria-valuetext", this.say.point(j, short(x), short(y)));
      dot.classList.toggle("lit", j === this.state.at.column);
    }
  }

  dot(j) {
    const made = draw("circle", {
      class: this.drag ? "dot free" : "dot",
      role: this.drag ? "slider" : "img",
      tabindex: j === 0 ? 0 : -1,
      "aria-label": `${this.say.key} ${j}`,
    });
    made.index = j;
    made.addEventListener("pointerenter", () => this.held === undefined && this.key(j));
    made.addEventListener("focus", () => this.key(j));
    made.addEventListener("keydown", (event) => this.onDotKey(event, j));
    return made;
  }

  // ---- pointer and keys ------------------------------------------------------------------------

  onDown(event) {
    const { index } = event.target;
    this.held = index !== undefined && this.drag ? index : null; // null: the query
    this.svg.setPointerCapture(event.pointerId);
    this.onMove(event);
  }

  onMove(event) {
    if (this.held === undefined) {
      return;
    }
    const [x, y] = this.under(event);
    if (this.held === null) {
      this.point(nearest(this.state.request.arrays[this.names[0]].data, x));
    } else {
      this.move(this.held, x, y);
    }
  }

  onUp() {
    this.held = undefined;
    if (this.state) {
      const arrays = this.names.map((name) => this.state.request.arrays[name].data);
      this.measure(...arrays);
      this.drawAxes();
    }
  }

  /** Move a point and request the new curve. */
  move(j, x, y) {
    const { arrays } = this.state.request;
    const changed = {};
    for (const [name, number] of [
      [this.names[1], x],
      [this.names[2], y],
    ]) {
      const data = arrays[name].data.slice();
      data[j] = number;
      changed[name] = { shape: arrays[name].shape, data };
    }
    this.drag(changed);
  }

  onDotKey(event, j) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const turns = { PageUp: -1, PageDown: 1 };
    if (event.key in turns) {
      this.dots.children[j + turns[event.key]]?.focus();
      event.preventDefault();
    }
    if (!(event.key in moves) || !this.drag) {
      return;
    }
    event.preventDefault();
    const [keys, values] = this.names.slice(1).map((name) => this.state.request.arrays[name].data);
    const [right, up] = moves[event.key];
    const [wide, high] = [this.x, this.y].map(([low, top]) => (top - low) * STEP);
    this.move(j, keys[j] + right * wide, values[j] + up * high);
  }

  onQueryKey(event) {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (!by) {
      return;
    }
    event.preventDefault();
    const { data } = this.state.request.arrays[this.names[0]];
    const order = [...data.keys()].sort((a, b) => data[a] - data[b]);
    const next = order[order.indexOf(this.state.at.row) + by];
    if (next !== undefined) {
      this.point(next);
    }
  }
}

/** Return the range of numbers, with a margin. */
function range(numbers) {
  const finite = numbers.filter(Number.isFinite);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const margin = (high - low) * 0.08 || 1;
  return finite.length ? [low - margin, high + margin] : [0, 1];
}

/** Return round numbers in a range. */
function ticks([low, high]) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((each) => each >= rough);
  const first = Math.ceil(low / step);
  const count = Math.floor(high / step) - first + 1;
  return Array.from({ length: count }, (_, i) => (first + i) * step);
}

function nearest(numbers, x) {
  let best = 0;
  numbers.forEach((each, i) => {
    best = Math.abs(each - x) < Math.abs(numbers[best] - x) ? i : best;
  });
  return best;
}
