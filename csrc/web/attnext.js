/**
 * attnext in a page: the C core as WebAssembly, behind functions with the names, defaults
 * and bits of Python's.
 *
 *     import { load, array } from "./attnext.js";
 *     const attnext = await load(new URL("attnext.wasm", import.meta.url));
 *     const X = array([[1, 0], [0, 1], [1, 1]]);
 *     attnext.dot_product_attention(X, X, X, { causal: true }).weights.data;
 *
 * An array is { shape, data }, data being a Float32Array, the last axis running fastest.
 * Attention returns { scores, weights, output, lse }.
 */

/** The fields of web_call, in web.h's order; each has four bytes. */
export const FIELDS = [
  "score", "B", "M", "N", "Dq", "Dk", "Dv", "H",
  "scale", "eps", "softcap",
  "empty_rows", "lens_per_query",
  "has_left", "left", "has_right", "right", "offset",
  "dropout_p", "seed_low", "seed_high",
  "queries", "keys", "values",
  "parameters0", "parameters1", "parameters2", "parameters3",
  "lens", "mask", "scores", "output", "weights", "lse", "room",
];
const FLOATS = new Set(["scale", "eps", "softcap", "dropout_p"]);

const SCORES = ["dot_product", "cosine", "additive", "gaussian"]; // ATTN_SCORES
const EMPTY_ROWS = ["uniform", "zero", "nan"]; // attn_empty_rows
const ALIGNMENT = 64;

const size = (shape) => shape.reduce((a, b) => a * b, 1);
const same = (a, b) => a.length === b.length && a.every((n, i) => n === b[i]);

function expect(holds, name, expected, got) {
  if (!holds) {
    throw new RangeError(`${name} is ${JSON.stringify(got)}, expected ${expected}`);
  }
}

function expectShape(x, name, expected) {
  expect(same(x.shape, expected), `the shape of ${name}`, JSON.stringify(expected), x.shape);
}

/** From nested lists of numbers, as numpy.array. */
export function array(nested) {
  const shape = [];
  for (let x = nested; Array.isArray(x); x = x[0]) {
    shape.push(x.length);
  }
  const data = Float32Array.from([nested].flat(Infinity));
  expect(data.length === size(shape), "the nested list", "rows of one length", nested);
  return { shape, data };
}

/** The module's memory, filled from its start for each call. */
class Memory {
  constructor(exports) {
    this.memory = exports.memory;
    this.start = exports.__heap_base.value;
    this.clear();
  }

  clear() {
    this.end = this.start;
  }

  take(bytes) {
    const at = Math.ceil(this.end / ALIGNMENT) * ALIGNMENT;
    this.end = at + bytes;
    const missing = this.end - this.memory.buffer.byteLength;
    if (missing > 0) {
      this.memory.grow(Math.ceil(missing / 65536));
    }
    return at;
  }

  put(data) {
    const at = this.take(data.byteLength);
    new data.constructor(this.memory.buffer, at, data.length).set(data);
    return at;
  }

  read(at, shape) {
    return { shape, data: new Float32Array(this.memory.buffer, at, size(shape)).slice() };
  }
}

/** Lengths, one for each entry or each query, of a number, a list, or a list of lists. */
function lengths(valid_lens, leading, M, N) {
  const B = size(leading);
  const nested = Array.isArray(valid_lens);
  const perQuery = nested && Array.isArray(valid_lens[0]);
  const first = leading.length > 0 ? leading[0] : 1;
  expect(!nested || valid_lens.length === first, "the length of valid_lens", first,
    valid_lens.length);
  const out = new Int32Array(B * (perQuery ? M : 1));
  for (let i = 0; i < out.length; i++) {
    const entry = Math.floor((i * first) / out.length); // shared by the axes between: heads
    const own = perQuery ? valid_lens[entry][i % M] : nested ? valid_lens[entry] : valid_lens;
    expect(Number.isInteger(own) && own >= 0, "valid_lens", "whole numbers, 0 or more",
      valid_lens);
    out[i] = Math.min(own, N);
  }
  return { perQuery, data: out };
}

/** Bytes of shape (..., M, N) from a mask of that shape or of its last axes. */
function maskBytes(mask, shape) {
  const fits = same(mask.shape, shape.slice(shape.length - mask.shape.length));
  expect(fits, "the shape of mask", `the last axes of ${JSON.stringify(shape)}`, mask.shape);
  return Uint8Array.from({ length: size(shape) }, (_, i) => +(mask.data[i % mask.data.length] != 0));
}

/** The parameters of an attention beside its queries, keys and values: those of the score. */
const PARAMETERS = {
  dot_product: [],
  cosine: [],
  additive: ["W_q", "W_k", "w_v", "b_h"],
  gaussian: [],
};

function scaleOf(score, options, D) {
  if (score === "gaussian") {
    const { w, sigma } = options;
    expect(w == null || sigma == null, "w beside sigma", "one of them: w = 1 / sigma", w);
    expect(sigma == null || sigma > 0, "sigma", "a number greater than 0", sigma);
    return sigma != null ? 1 / sigma : w ?? 1;
  }
  const usual = score === "dot_product" && D > 0 ? 1 / Math.sqrt(D) : 1;
  return options.scale ?? usual;
}

class Attnext {
  constructor(exports) {
    this.exports = exports;
    this.memory = new Memory(exports);
  }

  /** Who takes part, in words of web_call; what it takes of the memory is put there. */
  masks(options, leading, M, N) {
    const fields = { has_left: 0, left: 0, has_right: 0, right: 0 };
    if (options.valid_lens != null) {
      const lens = lengths(options.valid_lens, leading, M, N);
      fields.lens_per_query = +lens.perQuery;
      fields.lens = this.memory.put(lens.data);
      fields.room = this.memory.take(8 * lens.data.length);
    }
    if (options.mask != null) {
      fields.mask = this.memory.put(maskBytes(options.mask, [...leading, M, N]));
    }
    if (options.window != null) {
      const [left, right] = options.window;
      expect(left >= -1 && right >= -1, "window", "0 or more, or -1 for no bound",
        options.window);
      Object.assign(fields, { has_left: +(left >= 0), left, has_right: +(right >= 0), right });
    }
    if (options.causal) {
      Object.assign(fields, { has_right: 1, right: 0 });
    }
    const rows = EMPTY_ROWS.indexOf(options.empty_rows ?? "uniform");
    expect(rows >= 0, "empty_rows", `one of ${EMPTY_ROWS.join(", ")}`, options.empty_rows);
    return { ...fields, offset: options.causal_offset ?? 0, empty_rows: rows };
  }

  call(fields) {
    const at = this.memory.take(4 * FIELDS.length);
    const view = new DataView(this.memory.memory.buffer, at);
    FIELDS.forEach((name, i) => {
      const value = fields[name] ?? 0;
      FLOATS.has(name) ? view.setFloat32(4 * i, value, true) : view.setInt32(4 * i, value, true);
    });
    return at;
  }

  attention(score, queries, keys, values, options = {}) {
    const leading = queries.shape.slice(0, -2);
    const [M, Dq] = queries.shape.slice(-2);
    const [N, Dk] = keys.shape.slice(-2);
    const Dv = values.shape.at(-1);
    const additive = score === "additive";
    expectShape(keys, "keys", [...leading, N, additive ? Dk : Dq]);
    expectShape(values, "values", [...leading, N, Dv]);
    const H = additive ? options.W_q.shape[0] : 0;
    const expected = { W_q: [H, Dq], W_k: [H, Dk], w_v: [H], b_h: [H] };

    const memory = this.memory;
    memory.clear();
    const fields = this.masks(options, leading, M, N);
    PARAMETERS[score].forEach((name, i) => {
      if (options[name] != null || name !== "b_h") {
        expectShape(options[name], name, expected[name]);
        fields[`parameters${i}`] = memory.put(options[name].data);
      }
    });
    const shapes = {
      scores: [...leading, M, N],
      weights: [...leading, M, N],
      output: [...leading, M, Dv],
      lse: [...leading, M],
    };
    for (const [name, shape] of Object.entries(shapes)) {
      fields[name] = memory.take(4 * size(shape));
    }
    const seed = BigInt(options.seed ?? 0);
    Object.assign(fields, {
      score: SCORES.indexOf(score),
      B: size(leading), M, N, Dq, Dk, Dv, H,
      scale: scaleOf(score, options, Dq),
      eps: options.eps ?? 1e-8,
      softcap: options.softcap ?? 0,
      dropout_p: options.dropout_p ?? 0,
      seed_low: Number(seed & 0xffffffffn),
      seed_high: Number(seed >> 32n),
      queries: memory.put(queries.data),
      keys: memory.put(keys.data),
      values: memory.put(values.data),
    });
    const call = this.call(fields);
    const workspace = memory.take(this.exports.web_workspace(call));
    this.exports.web_attention(call, workspace);
    return Object.fromEntries(
      Object.entries(shapes).map(([name, shape]) => [name, memory.read(fields[name], shape)]),
    );
  }

  dot_product_attention(queries, keys, values, options) {
    return this.attention("dot_product", queries, keys, values, options);
  }

  cosine_attention(queries, keys, values, options) {
    return this.attention("cosine", queries, keys, values, options);
  }

  additive_attention(queries, keys, values, W_q, W_k, w_v, options) {
    return this.attention("additive", queries, keys, values, { ...options, W_q, W_k, w_v });
  }

  /** Nadaraya-Watson regression: keys and queries are points, values what is known there. */
  gaussian_attention(queries, keys, values, options) {
    return this.attention("gaussian", queries, keys, values, options);
  }

  masked_softmax(X, valid_lens = null, options = {}) {
    const leading = X.shape.slice(0, -2);
    const [M, N] = X.shape.length > 1 ? X.shape.slice(-2) : [1, X.shape[0]];
    const memory = this.memory;
    memory.clear();
    const fields = this.masks({ ...options, valid_lens }, leading, M, N);
    Object.assign(fields, { B: size(leading), M, N, scores: memory.put(X.data) });
    fields.weights = memory.take(4 * X.data.length);
    this.exports.web_masked_softmax(this.call(fields));
    return memory.read(fields.weights, X.shape);
  }
}

/** From where the module lies, or from its bytes. */
export async function load(source) {
  const bytes = source instanceof URL || typeof source === "string"
    ? await (await fetch(source)).arrayBuffer()
    : source;
  const { instance } = await WebAssembly.instantiate(bytes, {});
  instance.exports._initialize?.();
  return new Attnext(instance.exports);
}
