/* A matrix of coloured cells, for the pointer and the arrow keys. */

import { colour, short } from "./colour.js";
import { make, replace } from "./dom.js";
import { largest, slice } from "./tensor.js";

const MOST = 48; // rows and columns that are drawn
const WITH_NUMBERS = 8; // maximum number of columns with numbers in the cells
const [LEAST, FULL] = [9, 22]; // pixels of its cells
const DENSE = 12; // pixels of a cell: in smaller cells, only every fifth position has an index

/** One step of the row: its name and its selected matrix. */
export class Panel {
  constructor(say, point, choose) {
    this.say = say;
    this.point = point;
    this.name = make("button", { type: "button", class: "name" });
    this.name.addEventListener("click", choose);
    this.more = make("div", { class: "more" });
    this.grid = make("div", { class: "grid", role: "grid" });
    this.grid.addEventListener("pointerover", (event) => this.onPoint(event));
    this.grid.addEventListener("focusin", (event) => this.onPoint(event));
    this.grid.addEventListener("keydown", (event) => this.onKey(event));
    const scroll = make("div", { class: "scroll" }, this.grid);
    this.element = make("div", { class: "panel" }, this.name, scroll, this.more);
  }

  /** Draw a step. For a kernel regression, draw only the row of the selected query. */
  update(step, frame, at, labels, { current, oneRow, wide }) {
    this.element.classList.toggle("current", current);
    this.element.dataset.step = step.key;
    this.name.textContent = step.name;
    this.grid.setAttribute("aria-label", step.name);
    if (!step.data) {
      this.more.textContent = this.say.tooLarge;
      return;
    }
    this.matrix = slice(step, frame, at);
    const { rows, columns } = this.matrix;
    this.single = oneRow && rows.size === frame.rows;
    this.first = this.single ? at.row : 0;
    this.size = [this.single ? 1 : Math.min(rows.size, MOST), Math.min(columns.size, MOST)];
    this.named = [this.names(rows, labels), this.names(columns, labels)];
    const layout = JSON.stringify([this.size, this.named, step.key, this.first, frame.columns, wide]);
    if (layout !== this.layout) {
      this.layout = layout;
      this.build(rows, columns, frame, labels, wide);
    }
    this.paint(step.key === "takes_part" || step.key === "keep");
    const cut = [rows, columns].filter((axis) => axis.size > MOST && !(this.single && axis === rows));
    this.more.textContent = cut.map((axis) => this.say.shownOf(MOST, axis.size)).join(" · ");
  }

  /** Return the labels of an axis: tokens or indices. */
  names(axis, labels) {
    const given = { query: labels.queries, row: labels.queries, key: labels.keys }[axis.kind];
    return Array.from({ length: Math.min(axis.size, 4096) }, (_, i) =>
      given?.length === axis.size ? given[i] : String(i),
    );
  }

  build(rows, columns, frame, labels, wide) {
    const [M, N] = this.size;
    this.written = N <= WITH_NUMBERS && M <= 16;
    const longest = Math.max(...(labels.keys ?? ["0"]).map((name) => name.length));
    const upright = longest > 3 || frame.columns > WITH_NUMBERS;
    const roomy = frame.columns <= WITH_NUMBERS && frame.rows <= 16;
    const side = this.written ? 52 : fit(N, this.single ? 2 * wide : wide);
    const square = this.single ? FULL : fit(Math.max(M, frame.columns), wide);
    const high = roomy ? 28 : square;
    const top = upright ? Math.min(99, 6 * longest + 10) : 18; // pixels, the same in all panels
    this.grid.style.gridTemplateColumns = `auto repeat(${N}, ${side}px)`;
    this.grid.style.gridTemplateRows = `${top}px`;
    this.grid.style.gridAutoRows = `${high}px`;
    const keyed = columns.kind === "key";
    this.grid.classList.toggle("tiny", !this.written);
    this.grid.setAttribute("aria-rowcount", rows.size);
    this.grid.setAttribute("aria-colcount", columns.size);
    this.columnHeads = Array.from({ length: N }, (_, j) => {
      const dense = side < DENSE && !labels.keys && j % 5;
      const text = (keyed || this.written) && !dense ? this.named[1][j] : "";
      const kind = `head column${keyed && upright ? " upright" : ""}`;
      return make("span", { class: kind, role: "columnheader" }, text);
    });
    this.rowHeads = [];
    this.cells = [];
    const corner = make("span", { role: "presentation" });
    const heads = make("div", { role: "row", class: "cells" }, corner, ...this.columnHeads);
    const lines = [heads];
    for (let i = 0; i < M; i++) {
      const name = this.named[0][this.first + i] ?? "";
      const head = make("span", { class: "head", role: "rowheader", title: name }, name);
      const cells = Array.from({ length: N }, (_, j) => {
        const cell = make("span", { class: "cell", role: "gridcell", tabindex: "-1" });
        [cell.row, cell.column] = [this.first + i, j];
        return cell;
      });
      this.rowHeads.push(head);
      this.cells.push(cells);
      lines.push(make("div", { role: "row", class: "cells" }, head, ...cells));
    }
    replace(this.grid, ...lines);
  }

  paint(flags) {
    const { matrix, named } = this;
    const top = flags ? 3 : largest(matrix);
    for (const cell of this.cells.flat()) {
      const { row, column } = cell;
      const masked = matrix.masked(row, column);
      const number = matrix.number(row, column);
      const hidden = number === -Infinity ? "−∞" : "·"; // the step that masks shows -inf
      const flag = number ? "✓" : "";
      const text = flags ? flag : masked ? hidden : short(number);
      cell.classList.toggle("masked", masked);
      cell.style.backgroundColor = masked ? "" : colour(number, top);
      cell.textContent = this.written ? text : "";
      const said = masked ? this.say.masked : text;
      cell.setAttribute("aria-label", this.say.cell(named[0][row] ?? "", named[1][column], said));
    }
  }

  /** Mark the selected query and key. */
  light(row, column) {
    const pairs = this.matrix?.columns.kind === "key";
    const byQuery = ["query", "row"].includes(this.matrix?.rows.kind) || this.matrix?.rows.size === 1;
    const byKey = this.matrix?.rows.kind === "key";
    this.rowHeads?.forEach((head, i) => {
      head.classList.toggle("lit", byKey ? i === column : this.first + i === row);
    });
    this.columnHeads?.forEach((head, j) => head.classList.toggle("lit", pairs && j === column));
    const several = pairs && this.size?.[0] > 1;
    let stop = null;
    for (const cell of this.cells?.flat() ?? []) {
      const inRow = byKey ? cell.row === column : !byQuery || cell.row === row || this.single;
      const here = inRow && (!pairs || cell.column === column);
      cell.classList.toggle("lit", here);
      cell.classList.toggle("in-row", several && cell.row === row && !here);
      cell.tabIndex = -1;
      stop = here && (stop === null || stop.column > cell.column) ? cell : stop;
    }
    stop ??= this.cells?.[0]?.[0];
    if (stop) {
      (this.grid.contains(document.activeElement) ? (this.focused ?? stop) : stop).tabIndex = 0;
    }
  }

  onPoint(event) {
    const cell = event.target.closest(".cell");
    if (!cell || !this.grid.contains(cell)) {
      return;
    }
    this.focused = event.type === "focusin" ? cell : null;
    const { rows, columns } = this.matrix;
    if (columns.kind === "key") {
      this.point(cell.row, cell.column);
    } else if (rows.kind === "query" || rows.kind === "row") {
      this.point(cell.row, undefined);
    } else if (rows.kind === "key") {
      this.point(undefined, cell.row);
    }
  }

  onKey(event) {
    const moves = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      Home: [0, -Infinity],
      End: [0, Infinity],
      PageUp: [-Infinity, 0],
      PageDown: [Infinity, 0],
    };
    const cell = event.target.closest(".cell");
    if (!(event.key in moves) || !cell || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const [down, right] = moves[event.key];
    const [M, N] = this.size;
    const i = clamp(cell.row - this.first + down, M);
    const j = clamp(cell.column + right, N);
    event.preventDefault();
    event.stopPropagation();
    this.cells[i][j].focus({ preventScroll: false });
  }
}

/** Return the size of a cell in pixels, for a number of cells in a width. */
function fit(count, wide) {
  return Math.max(LEAST, Math.min(FULL, Math.floor(wide / count)));
}

function clamp(index, size) {
  return Math.max(0, Math.min(size - 1, index));
}
