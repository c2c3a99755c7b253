/* Sliders for the options, and for the selected head and batch element. */

import { short } from "./colour.js";
import { make, replace } from "./dom.js";

const OFF_CAP = 20; // position of the softcap slider that means no softcap
const KERNELS = ["gaussian", "boxcar", "triangular", "epanechnikov", "constant"];
const DRAWS = 2 ** 31;

/** All sliders, in one line that wraps. */
export class Controls {
  constructor(state, say, { change, lead, still }) {
    Object.assign(this, { say, change, lead, still });
    this.made = [];
    this.element = make("div", { class: "controls", role: "group", "aria-label": say.controls });
    this.base = null; // the scales when the view was opened
    this.layout = "";
  }

  update(state, frame) {
    this.state = state;
    this.frame = frame;
    this.base ??= baseScale(state);
    const layout = JSON.stringify([frame.lead, frame.columns, frame.rows]);
    if (layout !== this.layout) {
      this.layout = layout;
      this.build();
    }
    this.made.forEach((refresh) => refresh());
  }

  build() {
    this.made = [];
    const { state, frame } = this;
    const leads = frame.lead
      .flatMap((axis, i) => (axis.size > 1 ? this.axis(axis, i) : []));
    const options = state.controls.flatMap((name) => this[name]?.() ?? []);
    replace(this.element, ...leads, ...options);
  }

  get options() {
    return this.state.request.options;
  }

  // ---- one each --------------------------------------------------------------------------------

  axis({ kind, size }, i) {
    return this.slider(this.say.axes[kind], [0, size - 1, 1], {
      read: () => this.state.at.lead[i],
      text: (value) => `${value}`,
      write: (value) => this.lead(i, value),
      free: true,
    });
  }

  /** Divide the scores by a temperature. Temperature 1 is the given scale. */
  scale() {
    if (this.base === null) {
      return [];
    }
    const { base } = this;
    return this.slider(this.say.temperature, [-4, 4, "any"], {
      read: () => Math.log2(rounded(base.number / (this.options.scale ?? base.number))) || 0,
      text: (t) => `${short(2 ** t)} · ${this.say.scale} ${short(base.number / 2 ** t)}`,
      write: (t) => this.change({ scale: t === 0 ? base.given : rounded(base.number / 2 ** t) }),
    });
  }

  sigma() {
    return this.slider(this.say.sigma, [-6, 5, "any"], {
      read: () => Math.log2(this.options.sigma ?? 1 / (this.options.w ?? 1)),
      text: (value) => short(2 ** value),
      write: (value) => this.change({ sigma: rounded(2 ** value), w: null }),
    });
  }

  /** The length of the selected batch element, or of the selected query if lengths are 2-D. */
  valid_lens() {
    const { columns } = this.frame;
    return this.slider(this.say.valid_lens, [0, columns, 1], {
      read: () => Math.min(lengthAt(this.options.valid_lens, this.path()) ?? columns, columns),
      text: (value) => `${value} / ${columns}`,
      write: (value) =>
        this.change({ valid_lens: withLength(this.lengths(), this.path(), value) }),
    });
  }

  lengths() {
    const { lead, columns } = this.frame;
    const entries = lead.length ? lead[0].size : 0;
    return this.options.valid_lens ?? (entries ? Array(entries).fill(columns) : columns);
  }

  /** Return the path to the length in nested lists: [batch] if 1-D, [batch, query] if 2-D. */
  path() {
    const { lead, row } = this.state.at;
    const depth = depthOf(this.lengths());
    const entry = depth > 2 ? lead : lead.slice(0, 1);
    return depth > entry.length ? [...entry, row] : entry;
  }

  causal() {
    const box = make("input", { type: "checkbox" });
    box.disabled = this.still;
    box.addEventListener("change", () => this.change({ causal: box.checked }));
    this.made.push(() => {
      box.checked = Boolean(this.options.causal);
    });
    return [make("label", { class: "control check" }, box, this.say.causal)];
  }

  window() {
    const most = this.frame.columns;
    return this.slider(this.say.window, [0, most, 1], {
      read: () => {
        const [left, right] = this.options.window ?? [-1, -1];
        const wide = Math.max(left, right);
        return wide < 0 ? most : Math.min(wide, most);
      },
      text: (value) => (value === most ? this.say.all : this.say.windowText(value)),
      write: (value) => this.change({ window: value === most ? null : [value, value] }),
    });
  }

  softcap() {
    return this.slider(this.say.softcap, [0.25, OFF_CAP, 0.25], {
      read: () => this.options.softcap ?? OFF_CAP,
      text: (value) => (value === OFF_CAP ? this.say.none : short(value)),
      write: (value) => this.change({ softcap: value === OFF_CAP ? null : value }),
    });
  }

  dropout_p() {
    const again = make("button", { type: "button" }, this.say.redraw);
    again.disabled = this.still;
    again.addEventListener("click", () =>
      this.change({ seed: Math.floor(Math.random() * DRAWS) }),
    );
    const [slider] = this.slider(this.say.dropout_p, [0, 0.9, 0.05], {
      read: () => this.options.dropout_p ?? 0,
      text: (value) => short(value),
      write: (value) => this.change({ dropout_p: value, seed: this.options.seed ?? 0 }),
    });
    slider.append(again);
    this.made.push(() => {
      again.hidden = !this.options.dropout_p;
    });
    return [slider];
  }

  kernel() {
    const select = make("select", {}, ...KERNELS.map((name) => make("option", {}, name)));
    select.disabled = this.still;
    select.addEventListener("change", () => this.change({ kernel: select.value }));
    this.made.push(() => {
      select.value = this.options.kernel ?? "gaussian";
    });
    return [make("label", { class: "control" }, this.say.kernel, select)];
  }

  /** Return a slider with its name and its value as text. */
  slider(name, [min, max, step], { read, text, write, free = false }) {
    const input = make("input", { type: "range", min, max, step, "aria-label": name });
    const output = make("output", {});
    const tell = (value) => {
      output.textContent = text(value);
      input.setAttribute("aria-valuetext", text(value));
    };
    input.disabled = this.still && !free;
    input.addEventListener("pointerdown", () => {
      this.moving = true;
    });
    for (const end of ["pointerup", "pointercancel", "change"]) {
      input.addEventListener(end, () => {
        this.moving = false;
      });
    }
    input.addEventListener("input", () => {
      tell(Number(input.value));
      write(Number(input.value));
    });
    this.made.push(() => {
      const value = read();
      if (!this.moving) {
        input.value = value; // not while the user moves it, because an answer may be late
        tell(value);
      }
    });
    const label = make("label", { class: "control" }, make("span", {}, name), input, output);
    return [label];
  }
}

/** Return the scale at temperature 1: { number, given }; null if each head has its own scale. */
function baseScale({ request, result, given: { scale } }) {
  const given = scale ?? null;
  if (given !== null) {
    return typeof given === "number" ? { number: given, given } : null;
  }
  if (result.steps.some((step) => step.key === "cosine")) {
    return { number: 1, given };
  }
  const queries =
    result.steps.find((step) => step.key === "head_queries") ?? request.arrays.queries;
  return queries ? { number: 1 / Math.sqrt(Math.max(queries.shape.at(-1), 1)), given } : null;
}

/** Return a number rounded to four digits, as the call shows it. */
function rounded(number) {
  return Number(number.toPrecision(4));
}

function depthOf(lengths) {
  return Array.isArray(lengths) ? 1 + depthOf(lengths[0]) : 0;
}

function lengthAt(lengths, path) {
  return Array.isArray(lengths) ? lengthAt(lengths[path[0]], path.slice(1)) : lengths;
}

function withLength(lengths, path, value) {
  return Array.isArray(lengths)
    ? lengths.map((each, i) => (i === path[0] ? withLength(each, path.slice(1), value) : each))
    : value;
}
