/* The details of one weight: its query, its key, and the terms of their score. */

import { colour, short } from "./colour.js";
import { make } from "./dom.js";
import { slice, vector } from "./tensor.js";

const MOST = 16; // features whose numbers are written
// Smallest sum relative to its largest term. Below this, rounding dominates a quotient.
const LEAST = 1e-3;
const SCALED = ["scaled", "scaled_by", "gaussian", "cosine"]; // a sum times a factor
const SCORES = [...SCALED, "additive", "softcap", "bias", "X"];

/** Return elements that describe the selected weight. */
export function details(state, frame, say) {
  const { at, labels, result } = state;
  if (!frame.weights) {
    return [];
  }
  const query = labels.queries?.[at.row] ?? at.row;
  const key = labels.keys?.[at.column] ?? at.column;
  const behind = rows(state, frame, say);
  const weight = slice(frame.weights, frame, at);
  const masked = weight.masked(at.row, at.column);
  const score = scoreOf(result.steps, frame, at);
  const factor = masked ? null : factorOf(behind, result.steps, frame, at);
  const distance = result.steps.some((each) => each.key === "distance");
  const facts = [
    [distance ? say.factorOfDistance : say.factor, factor],
    [say.score, score === undefined ? null : masked ? "−∞" : short(score)],
    [say.weight, masked ? say.masked : short(weight.number(at.row, at.column))],
  ];
  return [
    make("strong", { class: "pair" }, say.pair(query, key)),
    behind.length ? table(behind, say) : null,
    make("p", { class: "facts" }, ...facts.filter(([, text]) => text !== null).map(fact)),
  ].filter((element) => element !== null);
}

/** Return an element with a name and a number. */
function fact([name, text]) {
  return make("span", {}, make("small", {}, name), " ", make("b", {}, text));
}

/** Return the factor between the sum of the last row and the score as text, or null. */
function factorOf(behind, steps, frame, at) {
  const [, numbers, summed] = behind.at(-1) ?? [];
  const sum = summed ? numbers.reduce((a, b) => a + b, 0) : 0;
  const score = scoreOf(steps, frame, at, SCALED);
  const factor = score / sum;
  const clear = Math.abs(sum) > LEAST * Math.max(...(numbers ?? [0]).map(Math.abs));
  return score !== undefined && clear && Number.isFinite(factor) ? short(factor) : null;
}

/** Return the score before masks: the last step of these kinds. */
function scoreOf(steps, frame, at, keys = SCORES) {
  const step = steps.findLast((each) => keys.includes(each.key) && each.data);
  return step && slice(step, frame, at).number(at.row, at.column);
}

/** Return [name, numbers, show the sum] for the query, the key and their product. */
function rows({ request, result, at }, frame, say) {
  const step = (key) => result.steps.find((each) => each.key === key && each.data);
  const { arrays } = request;
  const query = step("head_queries") ?? step("unit_q") ?? step("hidden_q") ?? column(arrays.queries ?? arrays.x);
  const key = step("head_keys") ?? step("unit_k") ?? step("hidden_k") ?? column(arrays.keys ?? arrays.x_train);
  if (!query?.data || !key?.data || query.shape.at(-1) !== key.shape.at(-1)) {
    return [];
  }
  const q = vector(query, frame, at, at.row);
  const k = vector(key, frame, at, at.column);
  if (!q.length || !k.length) {
    return [];
  }
  const both = [
    [say.query, q, false],
    [say.key, k, false],
  ];
  if (step("hidden_q")) {
    return [...both, ...additive(step("activations"), arrays.w_v, frame, at, say)];
  }
  if (step("distance")) {
    return [...both, [say.difference, q.map((x, d) => (x - k[d]) ** 2), true]];
  }
  return [...both, [say.product, q.map((x, d) => x * k[d]), true]];
}

function additive(activations, w_v, frame, at, say) {
  if (!activations) {
    return [];
  }
  const { columns, number } = slice(activations, frame, at);
  const t = Array.from({ length: columns.size }, (_, d) => number(at.column, d));
  const tanh = [say.tanh, t, false];
  return w_v?.data.length === t.length
    ? [tanh, [say.weighted, t.map((x, d) => x * w_v.data[d]), true]]
    : [tanh];
}

/** Return an array (n,) as n rows of one feature. */
function column(array) {
  return array?.shape.length === 1 ? { ...array, shape: [array.shape[0], 1] } : array;
}

function table(rows, say) {
  const count = rows[0][1].length;
  const written = count <= MOST;
  const lines = rows.map(([name, numbers, summed]) => {
    const top = Math.max(...numbers.map(Math.abs).filter(Number.isFinite), 0);
    const cells = numbers.map((x) => {
      const cell = make("td", { title: short(x) }, written ? short(x) : "");
      cell.style.backgroundColor = colour(x, top);
      return cell;
    });
    const sum = numbers.reduce((a, b) => a + b, 0);
    const total = make("td", { class: "sum" }, summed ? `${say.sum} ${short(sum)}` : "");
    return make("tr", {}, make("th", { scope: "row" }, name), ...cells, total);
  });
  const kind = written ? "vectors" : "vectors narrow";
  return make("div", { class: "scroll" }, make("table", { class: kind }, ...lines));
}
