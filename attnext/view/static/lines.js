/* Queries on the left, keys on the right. The opacity of a line is the weight of the pair. */

import { short, strength } from "./colour.js";
import { draw, make, replace } from "./dom.js";
import { slice } from "./tensor.js";

const MOST = 48; // tokens on a side
const FAINT = 0.02; // smaller weights have no line
const HIGH = 22;
const [LEFT, RIGHT, WIDE] = [120, 240, 360];

export class Lines {
  constructor(say, look) {
    this.say = say;
    this.look = look;
    this.svg = draw("svg", { class: "lines-svg", role: "group", "aria-label": say.lines });
    this.caption = make("figcaption", {}, say.lines);
    this.element = make("figure", { class: "lines" }, this.caption, this.svg);
  }

  /** Draw the weights of a frame, or nothing if it is null. */
  update(frame, at, labels) {
    const fits = frame && frame.columns > 1 && Math.max(frame.rows, frame.columns) <= MOST;
    this.element.hidden = !fits;
    if (!fits) {
      return;
    }
    const matrix = slice(frame.weights, frame, at);
    const name = (given, i) => given?.[i] ?? String(i);
    const high = Math.max(frame.rows, frame.columns) * HIGH + 6;
    this.svg.setAttribute("viewBox", `0 0 ${WIDE} ${high}`);
    this.svg.style.maxHeight = `${high * 1.25}px`;
    const lines = [];
    for (let i = 0; i < frame.rows; i++) {
      for (let j = 0; j < frame.columns; j++) {
        const weight = matrix.number(i, j);
        if (weight > FAINT && !matrix.masked(i, j)) {
          lines.push(line(i, j, weight, at));
        }
      }
    }
    const focused = this.svg.contains(document.activeElement);
    const queries = Array.from({ length: frame.rows }, (_, i) =>
      this.query(i, name(labels.queries, i), matrix, frame, at, labels),
    );
    const keys = Array.from({ length: frame.columns }, (_, j) => this.key(j, name(labels.keys, j), at, matrix));
    replace(this.svg, ...lines, ...queries, ...keys);
    if (focused) {
      queries[at.row].focus();
    }
  }

  query(i, text, matrix, frame, at, labels) {
    let best = 0;
    for (let j = 1; j < frame.columns; j++) {
      best = matrix.number(i, j) > matrix.number(i, best) ? j : best;
    }
    const key = labels.keys?.[best] ?? best;
    const element = token(i, text, LEFT - 8, "end", i === at.row, {
      role: "button",
      tabindex: i === at.row ? 0 : -1,
      "aria-pressed": String(i === at.row),
      "aria-label": this.say.linesLabel(text, key, short(matrix.number(i, best))),
    });
    element.addEventListener("pointerenter", () => this.look(i, at.column));
    element.addEventListener("click", () => this.look(i, best));
    element.addEventListener("keydown", (event) => {
      const to = i + { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (to >= 0 && to < frame.rows) {
        event.preventDefault();
        this.look(to, at.column);
      }
    });
    return element;
  }

  key(j, text, at, matrix) {
    const element = token(j, text, RIGHT + 8, "start", j === at.column, { "aria-hidden": "true" });
    element.addEventListener("pointerenter", () => this.look(at.row, j));
    const weight = matrix.masked(at.row, j) ? 0 : matrix.number(at.row, j);
    element.style.opacity = 0.45 + 0.55 * Math.min(1, weight * 2 || 0);
    return element;
  }
}

function line(i, j, weight, at) {
  const here = i === at.row;
  const bend = (LEFT + RIGHT) / 2;
  const d = `M${LEFT},${middle(i)} C${bend},${middle(i)} ${bend},${middle(j)} ${RIGHT},${middle(j)}`;
  return draw("path", {
    d,
    class: `line${here ? " here" : ""}${here && j === at.column ? " chosen" : ""}`,
    "stroke-width": (0.6 + 4 * weight).toFixed(2),
    "stroke-opacity": (strength(weight) * (here ? 1 : 0.3)).toFixed(3),
  });
}

function token(i, text, x, anchor, lit, attributes) {
  const shown = text.length > 16 ? `${text.slice(0, 15)}…` : text;
  const start = anchor === "end" ? x - LEFT + 10 : x - 4;
  return draw(
    "g",
    { class: `token${lit ? " lit" : ""}`, ...attributes },
    draw("rect", { x: start, y: middle(i) - 9, width: LEFT - 6, height: 18, rx: 4 }),
    draw("text", { x, y: middle(i), "text-anchor": anchor, "dominant-baseline": "central" }, shown),
  );
}

function middle(i) {
  return i * HIGH + HIGH / 2 + 3;
}
