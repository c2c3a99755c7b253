/* Small heat maps of all heads. A click selects a head. */

import { colour } from "./colour.js";
import { make, replace } from "./dom.js";
import { largest, slice } from "./tensor.js";

const SIDE = 72; // smallest heat map, in pixels
const MOST = 64; // maximum number of heat maps

export class Wall {
  constructor(say, open) {
    this.say = say;
    this.open = open;
    this.caption = make("figcaption", {});
    this.all = make("div", { class: "wall-all" });
    this.element = make("figure", { class: "wall" }, this.caption, this.all);
  }

  /** Draw each head, or each batch element if there are no heads. */
  update(frame, at) {
    this.axis = frame.lead.findLastIndex((axis) => axis.size > 1);
    this.element.hidden = this.axis < 0 || !frame.weights;
    if (this.element.hidden) {
      return;
    }
    const { kind, size } = frame.lead[this.axis];
    const word = this.say.axes[kind];
    this.caption.textContent = this.say.wall(word);
    const count = Math.min(size, MOST);
    if (this.all.children.length !== count) {
      replace(this.all, ...Array.from({ length: count }, (_, i) => this.button(i)));
    }
    for (let i = 0; i < count; i++) {
      const button = this.all.children[i];
      button.setAttribute("aria-label", `${word} ${i}`);
      button.lastChild.textContent = String(i);
      const lead = at.lead.map((each, a) => (a === this.axis ? i : each));
      paint(button.firstChild, slice(frame.weights, frame, { ...at, lead }));
    }
    this.light(at);
  }

  button(i) {
    const made = make("button", { type: "button" }, make("canvas"), make("span"));
    made.addEventListener("click", () => this.open(this.axis, i));
    return made;
  }

  light(at) {
    [...this.all.children].forEach((button, i) => {
      button.setAttribute("aria-pressed", String(i === at.lead[this.axis]));
    });
  }
}

function paint(canvas, matrix) {
  const [M, N] = [matrix.rows.size, matrix.columns.size];
  const side = Math.max(1, Math.ceil(SIDE / Math.max(M, N, 1)));
  [canvas.width, canvas.height] = [N * side, M * side];
  const context = canvas.getContext("2d");
  const top = largest(matrix);
  for (let i = 0; i < M; i++) {
    for (let j = 0; j < N; j++) {
      const masked = matrix.masked(i, j);
      context.fillStyle = masked ? "rgba(128,128,128,.16)" : colour(matrix.number(i, j), top);
      context.fillRect(j * side, i * side, side, side);
    }
  }
}
