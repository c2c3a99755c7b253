/*
 * The view of a computation, with one of two engines. In a notebook the kernel computes; in the
 * playground of the site the C core does, as WebAssembly. This is the interface of the engines.
 *
 *     import { mount } from "./view.js";
 *     const handle = mount(element, engine, state);
 *
 * An array is { shape: [2, 3], data: Float32Array }, in C order.
 *
 * state = {
 *   request: {
 *     function: "dot_product_attention",   // any name of attnext.explain, or "nadaraya_watson"
 *     arrays: { queries, keys, values, ... },  // by the names of its arguments;
 *                                          // of nadaraya_watson x (n,), x_train, y_train (N,)
 *     options: { scale: 0.5, valid_lens: [2, 6], causal: true, window: [1, 0], softcap: 5,
 *                sigma: 1, dropout_p: 0.1, seed: 0 },   // JSON; an option that is missing or
 *                                          // null has its default
 *     lang: "en" | "zh",
 *   },
 *   given: { scale: 0.5 },                 // the initial options, if sliders have moved
 *   result,                                // of that request; null: ask the engine
 *   labels: { queries: ["the", ...], keys: [...] },     // null where there are none
 *   controls: ["scale", "valid_lens", "causal", "window", "softcap", "sigma", "kernel",
 *              "dropout_p"],               // the options that have a slider
 *   at: { lead: [0, 0], row: 0, column: 0, step: "weights" },   // the selected cell; may be empty
 * }
 *
 * engine = {
 *   compute(request) -> result, or a promise of it. One request runs at a time. Of the requests
 *                       made meanwhile, only the newest waits.
 *   keep(at)            optional: called with the selected cell, so that it can be saved
 * }
 * Without an engine (null) the view shows its result; hover and keyboard work, but the sliders do
 * not.
 *
 * result = {
 *   title, call,                           // strings
 *   steps: [{
 *     key,                                 // as in attnext.explain: "raw", "masked", "weights" ...
 *     name, formula, note,                 // strings in the requested language
 *     shape, data,                         // data is null if the array is too large
 *     axes: ["batch", "head", "query", "key"],          // kinds: also group, row, feature, unit
 *     masked: Uint8Array | null,           // 1 where a pair is masked
 *   }],
 * } or { error: "a sentence" }
 *
 * handle = { state, show(result), destroy() }: show() draws a result that the view did not request.
 */

import { Curve, isCurve } from "./curve.js";
import { Controls } from "./controls.js";
import { details } from "./details.js";
import { make, replace } from "./dom.js";
import { Panel } from "./grid.js";
import { Lines } from "./lines.js";
import { STYLE } from "./style.js";
import { followTheme } from "./theme.js";
import { frameOf, mainSteps, strongest } from "./tensor.js";
import { Wall } from "./wall.js";
import { words } from "./words.js";

const [LEAST, FULL] = [150, 230]; // pixels of a matrix
const AROUND = 112; // pixels for the labels of a matrix and the gap to the next
const SOON = 1000; // milliseconds until the view says that it waits for the kernel
const WAIT = 15000; // milliseconds until the view says that the kernel does not answer
const REST = 400; // milliseconds without a change until the selected cell is saved
const PACE = 1800; // milliseconds per step while playing

/** Draw the state into the element; the engine computes what changes. */
export function mount(element, engine, state) {
  return new View(element, engine, state).handle();
}

class View {
  constructor(element, engine, state) {
    this.engine = engine;
    this.state = { labels: {}, controls: [], ...state };
    this.state.given ??= this.state.request.options;
    this.state.at = { lead: [], row: null, column: null, step: null, ...state.at };
    this.panels = new Map();
    this.root = make("section", { class: "attnext-view", tabindex: "-1" });
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    element.replaceChildren(make("style", {}, STYLE), this.root);
    this.leaveTheme = followTheme(this.root);
    this.build();
    if (this.state.result) {
      this.show(this.state.result);
    } else {
      this.ask();
    }
  }

  handle() {
    return {
      state: this.state,
      show: (result) => this.show(result),
      destroy: () => this.destroy(),
    };
  }

  destroy() {
    clearInterval(this.playing);
    this.stopWaiting();
    clearTimeout(this.keeping);
    this.leaveTheme();
    this.measured.disconnect();
    this.root.remove();
  }

  // ---- layout ----------------------------------------------------------------------------------

  get say() {
    return words(this.state.request.lang);
  }

  /** Build the parts of the page that stay when numbers change. */
  build() {
    const { say } = this;
    this.root.lang = this.state.request.lang === "zh" ? "zh-CN" : "en";
    this.root.setAttribute("aria-label", say.view);
    this.title = make("h3", { class: "title" });
    this.call = make("code", { class: "call" });
    this.status = make("p", { class: "status", role: "status" });
    this.row = make("div", { class: "matrices" });
    this.sentence = make("div", { class: "sentence", "aria-live": "polite" });
    this.detail = make("div", { class: "detail" });
    this.pictures = make("div", { class: "pictures" });
    this.controls = new Controls(this.state, say, {
      change: (options) => this.change({ options }),
      lead: (axis, index) => this.lookAt({ lead: with_(this.state.at.lead, axis, index) }),
      still: !this.engine,
    });
    this.curve = new Curve(say, {
      drag: this.engine && ((arrays) => this.change({ arrays })),
      point: (row) => this.lookAt({ row }),
      key: (column) => this.lookAt({ column }),
    });
    this.lines = new Lines(say, (row, column) => this.lookAt({ row, column }));
    this.wall = new Wall(say, (axis, index) =>
      this.lookAt({ lead: with_(this.state.at.lead, axis, index) }),
    );
    const language = make(
      "button",
      { class: "language", type: "button", "aria-label": say.otherLanguageLabel },
      say.otherLanguage,
    );
    language.addEventListener("click", () => this.changeLanguage());
    this.panels.clear();
    this.measured?.disconnect();
    this.measured = new ResizeObserver(() => this.fit());
    this.measured.observe(this.root);
    replace(
      this.root,
      make("header", {}, this.title, this.engine && language),
      this.call,
      this.controls.element,
      this.status,
      this.curve.element,
      this.stepper(),
      this.row,
      this.sentence,
      make("div", { class: "below" }, this.detail, this.lines.element, this.wall.element),
    );
  }

  /** Build the buttons for the previous step, the next step, each step, and play. */
  stepper() {
    const { say } = this;
    const button = (text, label, act) => {
      const made = make("button", { type: "button", "aria-label": label, title: label }, text);
      made.addEventListener("click", act);
      return made;
    };
    this.play = button("▶", say.play, () => this.togglePlay());
    this.stepNumber = make("span", { class: "step-number" });
    this.chips = make("div", { class: "chips", role: "group", "aria-label": say.steps });
    return make(
      "nav",
      { class: "stepper", "aria-label": say.steps },
      button("‹", say.previous, () => this.turn(-1)),
      this.play,
      button("›", say.next, () => this.turn(1)),
      this.stepNumber,
      this.chips,
    );
  }

  // ---- changes ---------------------------------------------------------------------------------

  /** Set new options or arrays, and request the new result. */
  change({ options = {}, arrays = {}, lang = this.state.request.lang }) {
    const { request } = this.state;
    this.state.request = {
      ...request,
      options: { ...request.options, ...options },
      arrays: { ...request.arrays, ...arrays },
      lang,
    };
    this.ask();
  }

  /** Draw again for a new width of the page. */
  fit() {
    if (this.fitted !== this.root.clientWidth) {
      this.fitted = this.root.clientWidth;
      this.draw({ all: true });
    }
  }

  changeLanguage() {
    this.change({ lang: this.state.request.lang === "zh" ? "en" : "zh" });
    this.build();
    this.show(this.state.result);
    this.root.querySelector(".language").focus();
  }

  /** Ask the engine. Of the changes made meanwhile, only the newest is requested next. */
  async ask() {
    if (!this.engine) {
      return;
    }
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    do {
      this.again = false;
      this.soon = setTimeout(() => this.tell(this.say.waiting), SOON);
      this.late = setTimeout(() => this.tell(this.say.late, true), WAIT);
      const { request } = this.state;
      let result;
      try {
        result = await this.engine.compute(request);
      } catch (error) {
        result = { error: String(error.message ?? error) };
      }
      this.stopWaiting();
      if (!this.again || !result.error) {
        this.show(result);
      }
    } while (this.again);
    this.asking = false;
  }

  stopWaiting() {
    clearTimeout(this.soon);
    clearTimeout(this.late);
  }

  tell(text, wrong = false) {
    this.status.textContent = text;
    this.status.classList.toggle("wrong", wrong);
  }

  /** Select another cell, head, step or panel. */
  lookAt(place) {
    const before = this.state.at;
    this.state.at = { ...before, ...place };
    if (Object.keys(place).every((name) => same(before[name], this.state.at[name]))) {
      return;
    }
    this.draw(place);
    clearTimeout(this.keeping);
    this.keeping = setTimeout(() => this.engine?.keep?.(this.state.at), REST);
  }

  // ---- drawing ---------------------------------------------------------------------------------

  show(result) {
    if (!result || result.error) {
      this.tell(result?.error ?? "", true);
      return;
    }
    this.tell(this.engine ? "" : this.say.still);
    this.state.result = result;
    this.frame = frameOf(result.steps);
    const { at } = this.state;
    at.lead = this.frame.lead.map((axis, i) => Math.min(at.lead[i] ?? 0, axis.size - 1));
    const middle = isCurve(this.state.request) ? Math.floor(this.frame.rows / 2) : 0;
    at.row = Math.min(at.row ?? middle, Math.max(this.frame.rows - 1, 0));
    const best = at.column ?? strongest(this.frame, at);
    at.column = Math.min(best, Math.max(this.frame.columns - 1, 0));
    this.title.textContent = result.title;
    this.call.textContent = result.call;
    this.draw({ all: true });
  }

  /** Draw everything that depends on these parts of `at`. */
  draw(changed) {
    const { state, frame } = this;
    const { at, result, labels } = state;
    if (!result) {
      return;
    }
    const step = this.currentStep();
    const curve = isCurve(state.request);
    const cellOnly = !("all" in changed || "lead" in changed || "step" in changed);
    const deep = step.axes.length > frame.lead.length + 2; // the matrix depends on the query
    if (!cellOnly || curve || deep) {
      this.drawRow(step, curve);
    }
    this.drawSteps(step);
    this.controls.update(state, frame);
    for (const panel of this.panels.values()) {
      panel.light(at.row, at.column);
    }
    replace(this.detail, ...details(state, frame, this.say));
    this.curve.update(state, frame, curve);
    this.lines.update(frame.weights && !curve ? frame : null, at, labels);
    if (!cellOnly) {
      this.wall.update(frame, at);
    }
    this.wall.light(at);
  }

  /** Draw the row: a matrix for each main step and for the selected step. */
  drawRow(step, curve) {
    const { at, result, labels } = this.state;
    const shown = mainSteps(result.steps).filter((each) => each.data);
    const steps = result.steps.filter((each) => shown.includes(each) || each === step);
    const wanted = new Set(steps.map((each) => each.key));
    for (const [key, panel] of this.panels) {
      if (!wanted.has(key)) {
        panel.element.remove();
        this.panels.delete(key);
      }
    }
    const elements = steps.map((each) => {
      if (!this.panels.has(each.key)) {
        const point = (row, column) => this.lookAt(given({ row, column }));
        const choose = () => this.lookAt({ step: each.key });
        this.panels.set(each.key, new Panel(this.say, point, choose));
      }
      const panel = this.panels.get(each.key);
      const layout = { current: each === step, oneRow: curve, wide: this.wide(steps.length) };
      panel.update(each, this.frame, at, labels, layout);
      return panel.element;
    });
    if (elements.some((element, i) => this.row.children[i] !== element)) {
      replace(this.row, ...elements);
    }
    elements.forEach((element, i) => {
      const ends = i + 1 < elements.length && elements[i + 1].offsetTop > element.offsetTop;
      element.classList.toggle("ends", ends); // the last panel of a line has no arrow
    });
    const current = elements[steps.indexOf(step)];
    if (current && this.row.scrollWidth > this.row.clientWidth) {
      this.row.scrollLeft = current.offsetLeft - this.row.offsetLeft - 12;
    }
  }

  /** Return the width of a matrix with which all fit in one line, if that is not too narrow. */
  wide(count) {
    const share = this.root.clientWidth / count - AROUND;
    return share < LEAST ? FULL : Math.min(FULL, share);
  }

  /** Draw the name of each step, and the note of the selected step. */
  drawSteps(step) {
    const { result } = this.state;
    const { say } = this;
    if (this.chips.children.length !== result.steps.length) {
      replace(this.chips, ...result.steps.map(() => make("button", { type: "button" })));
    }
    result.steps.forEach((each, i) => {
      const chip = this.chips.children[i];
      chip.textContent = each.name;
      chip.setAttribute("aria-pressed", String(each === step));
      chip.onclick = () => this.lookAt({ step: each.key });
    });
    const number = result.steps.indexOf(step) + 1;
    this.stepNumber.textContent = `${number} / ${result.steps.length}`;
    const shape = step.shape.length ? `(${step.shape.join(", ")})` : "";
    const heading = say.step(number, step.name);
    const text = [heading, shape, step.formula, step.note].join("\n");
    if (this.sentence.dataset.text !== text) {
      this.sentence.dataset.text = text;
      replace(
        this.sentence,
        make("strong", {}, heading),
        make("span", { class: "shape" }, shape),
        make("code", {}, step.formula),
        make("p", {}, step.note),
      );
    }
  }

  currentStep() {
    const { at, result } = this.state;
    const weights = result.steps.findLast((step) => step.key === this.frame.key);
    return result.steps.find((step) => step.key === at.step) ?? weights ?? result.steps.at(-1);
  }

  // ---- steps and keys --------------------------------------------------------------------------

  turn(by) {
    const { steps } = this.state.result;
    const next = (steps.indexOf(this.currentStep()) + by + steps.length) % steps.length;
    this.lookAt({ step: steps[next].key });
  }

  togglePlay() {
    clearInterval(this.playing);
    const starts = !this.playing;
    this.playing = starts ? setInterval(() => this.playOn(), PACE) : null;
    this.play.textContent = starts ? "❚❚" : "▶";
    this.play.setAttribute("aria-label", starts ? this.say.pause : this.say.play);
    if (starts) {
      this.lookAt({ step: this.state.result.steps[0].key });
    }
  }

  /** Go to the next step. Stop after the last one. */
  playOn() {
    this.turn(1);
    if (this.currentStep() === this.state.result.steps.at(-1)) {
      this.togglePlay();
    }
  }

  onKey(event) {
    const turns = { "[": -1, "]": 1 };
    if (event.key in turns && this.state.result) {
      this.turn(turns[event.key]);
      event.preventDefault();
    }
  }
}

function with_(list, index, value) {
  return list.map((each, i) => (i === index ? value : each));
}

/** Return the known parts of a position: a step may have only queries or only keys. */
function given(place) {
  return Object.fromEntries(Object.entries(place).filter(([, index]) => index !== undefined));
}

function same(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}
