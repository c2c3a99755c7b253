/*
 * The steps of each scoring function, from queries and keys to scores. The scores are the core's;
 * what leads to them is written here by the same formulas, to be looked at.
 */

import { emptyRows, idleKeys } from "./pairs.js";
import { general } from "./steps.js";

/** Each row of an array (..., R, D), and what becomes of it, as an array (..., R, E). */
function eachRow({ shape, data }, width, change) {
  const D = shape.at(-1);
  const rows = data.length / D;
  const out = new Float32Array(rows * width);
  for (let i = 0; i < rows; i++) {
    out.set(change(data.subarray(i * D, (i + 1) * D)), i * width);
  }
  return { shape: [...shape.slice(0, -1), width], data: out };
}

function rowOf({ shape, data }, i) {
  const D = shape.at(-1);
  return data.subarray(i * D, (i + 1) * D);
}

const repeated = (rows, width) => rows.flatMap((each) => Array(width).fill(each));

function dot(a, b) {
  return a.reduce((sum, x, d) => sum + x * b[d], 0);
}

/** What a scoring function is given: queries, keys, the pairs that take part, its axes. */
export class Inputs {
  constructor({ queries, keys }, live, lead) {
    Object.assign(this, { queries, keys, live, lead });
    this.M = queries.shape.at(-2);
    this.N = keys.shape.at(-2);
    this.pairs = [...lead, "query", "key"];
    this.masked = live.map((each) => 1 - each);
    this.idleQueries = [...emptyRows(live, this.N)];
    this.idleKeys = [...idleKeys(live, this.M, this.N)];
  }

  /** (..., M, N) numbers: f(a query, a key) of each pair. */
  ofPairs(f, width = 1) {
    const { queries, keys, M, N, live } = this;
    const data = new Float32Array(live.length * width);
    live.forEach((each, at) => {
      const row = Math.floor(at / N);
      const key = Math.floor(row / M) * N + (at % N);
      data.set(each ? [f(rowOf(queries, row), rowOf(keys, key), row, key)].flat() : [], at * width);
    });
    const shape = [...queries.shape.slice(0, -1), N, ...(width > 1 ? [width] : [])];
    return { shape, data };
  }
}

function dotProduct(x, steps, { options, scores, plain }) {
  const D = x.queries.shape.at(-1);
  steps.add("raw", plain, x.pairs, x.masked);
  if (options.scale == null) {
    steps.add("scaled", scores, x.pairs, x.masked, { D });
  } else {
    steps.add("scaled_by", scores, x.pairs, x.masked, { scale: general(Math.fround(options.scale)) });
  }
}

function additive(x, steps, { arrays, scores }) {
  const { W_q, W_k, w_v } = arrays;
  const [H, Dq] = W_q.shape;
  const Dk = W_k.shape[1];
  const project = (rows, W) =>
    eachRow(rows, H, (row) => Array.from({ length: H }, (_, h) => dot(row, rowOf(W, h))));
  const hidden_q = project(x.queries, W_q);
  const hidden_k = project(x.keys, W_k);
  const bias = arrays.b_h;
  const sums = x.ofPairs((_q, _k, row, key) => {
    const [q, k] = [rowOf(hidden_q, row), rowOf(hidden_k, key)];
    return Array.from(q, (each, h) => each + k[h] + (bias?.data[h] ?? 0));
  }, H);
  const tanh = { shape: sums.shape, data: sums.data.map(Math.tanh) };
  const of_units = repeated([...x.masked], H);
  steps.add("hidden_q", hidden_q, [...x.lead, "query", "unit"], repeated(x.idleQueries, H), {
    D: Dq,
    H,
  });
  steps.add("hidden_k", hidden_k, [...x.lead, "key", "unit"], repeated(x.idleKeys, H), {
    D: Dk,
    H,
  });
  steps.add("features", sums, [...x.pairs, "unit"], of_units, { H, bias: bias ? " + b_h" : "" });
  steps.add("activations", tanh, [...x.pairs, "unit"], of_units, { H });
  steps.add("additive", scores, x.pairs, x.masked, { H: w_v.data.length });
}

function gaussian(x, steps, { options, scores }) {
  const w = options.sigma != null ? 1 / Math.fround(options.sigma) : Math.fround(options.w ?? 1);
  const distance = x.ofPairs((q, k) => Math.hypot(...q.map((each, d) => each - k[d])));
  steps.add("distance", distance, x.pairs, x.masked);
  steps.add("gaussian", scores, x.pairs, x.masked, { w, sigma: 1 / w });
}

function cosine(x, steps, { options, scores }) {
  const eps = Math.fround(options.eps ?? 1e-8);
  const D = x.queries.shape.at(-1);
  const unit = (rows) =>
    eachRow(rows, D, (row) => row.map((each) => each / Math.max(Math.hypot(...row), eps)));
  const numbers = { eps };
  const queries = repeated(x.idleQueries, D);
  steps.add("unit_q", unit(x.queries), [...x.lead, "query", "feature"], queries, numbers);
  steps.add("unit_k", unit(x.keys), [...x.lead, "key", "feature"], repeated(x.idleKeys, D), numbers);
  const scale = general(Math.fround(options.scale ?? 1 / Math.sqrt(D)));
  steps.add("cosine", scores, x.pairs, x.masked, { scale });
}

export const SCORES = {
  dot_product_attention: dotProduct,
  additive_attention: additive,
  gaussian_attention: gaussian,
  cosine_attention: cosine,
};
