/**
 * attnext in a page: the C core as WebAssembly, behind functions with the names, defaults
 * and bits of Python's.
 *
 *     import { load, array } from "./attnext.js";
 *     const attnext = await load(new URL("attnext.wasm", import.meta.url));
 *     const X = array([[1, 0], [0, 1], [1, 1]]);
 *     attnext.dot_product_attention(X, X, X, { causal: true }).weights.data;
 *
 * An array is { shape, data }: data is a Float32Array in C order. Attention returns
 * { scores, weights, output, lse }. All arguments are checked before the core reads them. A
 * RangeError names the argument, what was expected and what was given.
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
const EXPORTS = ["memory", "__heap_base", "web_attention", "web_workspace", "web_masked_softmax"];
const ALIGNMENT = 64;
const MOST = 2 ** 31 - 1; // of an int32_t
const ADDRESSES = 2 ** 32; // bytes that a module of WebAssembly can address
const SIZE_MAX = 2 ** 32 - 1; // web_workspace's answer if sizes overflow
const AXES = 64; // the most that an array of NumPy can have

const size = (shape) => shape.reduce((a, b) => a * b, 1);
const same = (a, b) => a.length === b.length && a.every((n, i) => n === b[i]);
const listed = (items) => `[${items.join(", ")}]`;

// ---- what a value is ----------------------------------------------------------------------------

// The getters that all typed arrays inherit know type and length, whatever an object claims.
const TYPED = Object.getPrototypeOf(Float32Array.prototype);
const getterOf = (name) => Object.getOwnPropertyDescriptor(TYPED, name).get;
const [typeGetter, lengthGetter] = [getterOf(Symbol.toStringTag), getterOf("length")];
const typedName = (x) => typeGetter.call(x); // "Float32Array", ...; undefined for other values
const lengthOf = (data) => lengthGetter.call(data);

/** Return a short text of a value, for an error message. */
function shown(x) {
  if (typedName(x)) {
    return `${typedName(x)} of ${lengthOf(x)} elements`;
  }
  if (Array.isArray(x)) {
    const some = x.slice(0, 8).map((each) => (Array.isArray(each) ? "[...]" : shown(each)));
    return listed(x.length > 8 ? [...some, "..."] : some);
  }
  if (typeof x === "string") {
    return JSON.stringify(x.length > 40 ? `${x.slice(0, 40)}...` : x);
  }
  const plain = x === null || !["object", "function", "symbol"].includes(typeof x);
  return plain ? `${x}${typeof x === "bigint" ? "n" : ""}` : `a value of type ${typeof x}`;
}

/** Throw an error unless the argument is what was expected: its name, the rule, the value. */
function expect(holds, name, expected, got) {
  if (!holds) {
    throw new RangeError(`${name}: expected ${expected}, got ${got}`);
  }
}

/** Return { shape, flat } of nested lists; null if two lists of one depth differ in shape. */
function flatten(nested, depth = AXES) {
  if (!Array.isArray(nested)) {
    return { shape: [], flat: [nested] };
  }
  if (!nested.some(Array.isArray)) {
    return { shape: [nested.length], flat: Array.from(nested) };
  }
  const parts = Array.from(nested, (each) => (depth > 0 ? flatten(each, depth - 1) : null));
  if (parts.some((part) => part === null || !same(part.shape, parts[0].shape))) {
    return null;
  }
  return { shape: [parts.length, ...parts[0].shape], flat: parts.flatMap(({ flat }) => flat) };
}

/** Convert nested lists of numbers, or of true and false, to an array, as numpy.array does. */
export function array(nested) {
  const found = flatten(nested);
  expect(found, "array", "nested lists of one depth with equal lengths", shown(nested));
  const at = found.flat.findIndex((x) => typeof x !== "number" && typeof x !== "boolean");
  expect(at < 0, "array", "numbers, or true and false", shown(found.flat[at]));
  return { shape: found.shape, data: Float32Array.from(found.flat) };
}

// ---- the table of arguments ---------------------------------------------------------------------

const isInteger = (least, most) => (x) => Number.isInteger(x) && x >= least && x <= most;
const isFloat32 = (holds) => (x) =>
  typeof x === "number" && Number.isFinite(Math.fround(x)) && holds(Math.fround(x), x);
const isLengths = (x) => x !== null && x.flat.every(isInteger(0, Infinity));
const isSeed = (x) =>
  (typeof x === "bigint" || Number.isSafeInteger(x) ||
    (typeof x === "string" && /^\d{1,20}$/.test(x))) &&
  BigInt(x) >= 0n && BigInt(x) < 2n ** 64n;
const copied = (x) => (Array.isArray(x) ? Array.from(x) : x);

/*
 * Each option: what is expected; whether a value is that; the default, which null and undefined
 * stand for; how the value is copied out of the caller's object before it is checked. The shapes
 * of valid_lens, mask and b_h are compared with the sizes of the call later.
 */
const OPTIONS = {
  valid_lens: { expected: "integers of 0 or more in lists of one length", holds: isLengths,
    read: flatten },
  mask: { expected: "an array of 0 and 1", holds: () => true, read: (x) => readArray("mask", x) },
  b_h: { expected: "an array", holds: () => true, read: (x) => readArray("b_h", x) },
  causal: { expected: "true or false", holds: (x) => typeof x === "boolean" },
  causal_offset: { expected: `an integer from ${-MOST - 1} to ${MOST}`,
    holds: isInteger(-MOST - 1, MOST), usual: 0 },
  window: { expected: `[left, right], integers from 0 to ${MOST}, or -1 for no bound`,
    holds: (x) => Array.isArray(x) && x.length === 2 && x.every(isInteger(-1, MOST)),
    read: copied },
  empty_rows: { expected: `one of ${EMPTY_ROWS.join(", ")}`,
    holds: (x) => EMPTY_ROWS.includes(x), usual: "uniform" },
  scale: { expected: "a finite float32 number", holds: isFloat32(() => true) },
  w: { expected: "a finite float32 number", holds: isFloat32(() => true) },
  sigma: { expected: "a finite number above 0 with a finite 1 / sigma in float32",
    holds: (x) => Number.isFinite(x) && x > 0 && Number.isFinite(Math.fround(1 / x)) },
  eps: { expected: "a finite float32 number above 0", holds: isFloat32((x) => x > 0),
    usual: 1e-8 },
  softcap: { expected: "a finite float32 number above 0", holds: isFloat32((x) => x > 0) },
  dropout_p: { expected: "0 <= dropout_p < 1 in float32",
    holds: isFloat32((x, given) => given >= 0 && x < 1), usual: 0 },
  seed: { expected: "an integer, 0 <= seed < 2**64: a number, a BigInt or a string of digits",
    holds: isSeed, usual: 0 },
};

const SHARED = ["valid_lens", "mask", "causal", "causal_offset", "window", "empty_rows", "softcap",
  "dropout_p", "seed"];
const INPUTS = { queries: "...MQ", keys: "...NQ", values: "...NV" };

/*
 * Each function: its arrays, with a letter for each axis, and its options; an array that is an
 * option may be missing. "..." stands for leading axes. A letter is one size in a whole call.
 */
const FUNCTIONS = {
  dot_product: { arrays: INPUTS, options: [...SHARED, "scale"] },
  cosine: { arrays: INPUTS, options: [...SHARED, "scale", "eps"] },
  additive: {
    arrays: { ...INPUTS, keys: "...NK", W_q: "HQ", W_k: "HK", w_v: "H", b_h: "H" },
    options: [...SHARED, "b_h"],
  },
  gaussian: { arrays: INPUTS, options: [...SHARED, "w", "sigma"] },
  masked_softmax: { arrays: { X: "...MN" }, options: ["valid_lens", "mask", "empty_rows"] },
};

/** Copy and check the options of a function; `byPosition` has those that are not in `given`. */
function readOptions(names, given, byPosition) {
  const plain = typeof given === "object" && !Array.isArray(given) && !typedName(given);
  expect(plain, "options", "an object of options by name", shown(given));
  const known = { __proto__: null };
  for (const name in given) {
    expect(names.includes(name), "options", `names of ${listed(names)}`, shown(name));
    known[name] = given[name];
  }
  const value = (name) => {
    const { expected, holds, usual = null, read = (x) => x } = OPTIONS[name];
    const x = byPosition[name] ?? known[name] ?? null;
    expect(x === null || x !== byPosition[name] || known[name] == null, name, "one value",
      "one by position and one by name");
    const own = x === null ? usual : read(x);
    expect(x === null || holds(own), name, expected, shown(x));
    return own;
  };
  return Object.fromEntries(names.map((name) => [name, value(name)]));
}

/** Copy shape and data out of the caller's object. */
function readArray(name, x) {
  expect(x !== null && typeof x === "object", name, "an array { shape, data }", shown(x));
  const { shape, data } = x;
  const fits = Array.isArray(shape) && shape.length <= AXES;
  expect(fits, `${name}.shape`, `a list of at most ${AXES} integers`, shown(shape));
  const sizes = Array.from(shape);
  const whole = sizes.every(isInteger(0, MOST));
  expect(whole, `${name}.shape`, `integers from 0 to ${MOST}`, shown(sizes));
  return { shape: sizes, data };
}

function checkData(name, { shape, data }, types) {
  expect(types.includes(typedName(data)), `${name}.data`, `a ${types.join(" or ")}`, shown(data));
  const expected = `${size(shape)} elements for shape ${listed(shape)}`;
  expect(lengthOf(data) === size(shape), `${name}.data`, expected, `${lengthOf(data)}`);
}

/** Compare a shape with the letters of its axes; `sizes` takes up the letters that are new. */
function bind(name, pattern, shape, sizes) {
  const open = pattern.startsWith("...");
  const letters = [...pattern.replace("...", "")];
  const count = shape.length - letters.length; // of leading axes
  const own = shape.slice(Math.max(count, 0));
  const leading = open ? (sizes.leading ?? shape.slice(0, Math.max(count, 0))) : [];
  const fits = count >= 0 && same(shape.slice(0, count), leading);
  const expected = letters.map((letter) => sizes[letter] ?? letter);
  const first = open && !sizes.leading ? ["..."] : leading;
  const agrees = fits && expected.every((n, i) => typeof n === "string" || n === own[i]);
  expect(agrees, `${name}.shape`, listed([...first, ...expected]), listed(shape));
  letters.forEach((letter, i) => {
    sizes[letter] = own[i];
  });
  sizes.leading ??= leading;
}

/** Check all arguments of a call; return its arrays, its options and the sizes of its axes. */
function readCall(name, given, givenOptions) {
  const { arrays: patterns, options: names } = FUNCTIONS[name];
  // First all that may run code of the caller's (getters), so that none runs after the checks.
  const options = readOptions(names, givenOptions ?? {}, given);
  const required = Object.keys(patterns).filter((each) => !names.includes(each));
  const read = required.map((each) => [each, readArray(each, given[each])]);
  const optional = Object.keys(patterns).filter((each) => options[each]);
  const arrays = Object.fromEntries([...read, ...optional.map((each) => [each, options[each]])]);
  const sizes = { leading: null };
  for (const [each, x] of Object.entries(arrays)) {
    const one = each === "X" && x.shape.length === 1; // a row without queries
    bind(each, one ? "N" : patterns[each], x.shape, sizes);
    checkData(each, x, ["Float32Array"]);
  }
  const B = size(sizes.leading);
  expect(B <= MOST, `${required[0]}.shape`, `at most ${MOST} matrices`, `${B}`);
  return { arrays, options, sizes: { ...sizes, B } };
}

// ---- the module's memory ------------------------------------------------------------------------

/** The memory, filled from its start for each call. */
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
    expect(this.end <= ADDRESSES, "sizes", "a call of at most 4 GiB", `${this.end} bytes`);
    const missing = this.end - this.memory.buffer.byteLength;
    if (missing > 0) {
      try {
        this.memory.grow(Math.ceil(missing / 65536));
      } catch {
        expect(false, "sizes", "a call for which the page has memory", `${this.end} bytes`);
      }
    }
    return at;
  }

  put(data, Type = Float32Array) {
    const at = this.take(lengthOf(data) * Type.BYTES_PER_ELEMENT);
    new Type(this.memory.buffer, at, lengthOf(data)).set(data);
    return at;
  }

  read(at, shape) {
    return { shape, data: new Float32Array(this.memory.buffer, at, size(shape)).slice() };
  }
}

/** Return the lengths, one for each batch element or each query, as int32_t. */
function lengths({ shape, flat }, { leading, B, M, N }) {
  const [first = 1] = leading;
  const batch = leading.slice(0, 1);
  const shapes = [[], batch, M === undefined ? [] : [...batch, M]];
  const lists = shapes.filter((each) => each.length).map(listed);
  const expected = ["an integer", ...lists.map((each) => `a list of shape ${each}`)].join(" or ");
  const fits = shapes.some((each) => same(each, shape));
  expect(fits, "valid_lens", expected, `shape ${listed(shape)}`);
  const perQuery = shape.length > batch.length;
  const each = perQuery ? M : 1; // lengths of a batch element
  const data = Int32Array.from({ length: B * each }, (_, i) => {
    const element = Math.floor((Math.floor(i / each) * first) / B); // shared by axes between: heads
    return Math.min(flat[shape.length ? element * each + (i % each) : 0], N);
  });
  return { perQuery, data };
}

/** Return bytes (..., M, N) of a mask of that shape or of its last axes. */
function maskBytes(mask, shape) {
  checkData("mask", mask, ["Float32Array", "Uint8Array"]);
  const fits = same(mask.shape, shape.slice(Math.max(shape.length - mask.shape.length, 0)));
  expect(fits, "mask.shape", `the last axes of ${listed(shape)}`, listed(mask.shape));
  const count = lengthOf(mask.data);
  const data = new Float32Array(count);
  data.set(mask.data);
  const wrong = data.findIndex((x) => x !== 0 && x !== 1);
  expect(wrong < 0, "mask.data", "0 (masked) and 1 (attended to) only", `${data[wrong]}`);
  return Uint8Array.from({ length: size(shape) }, (_, i) => data[i % count]);
}

// ---- the functions ------------------------------------------------------------------------------

function scaleOf(score, { scale, w, sigma }, D) {
  if (score === "gaussian") {
    const both = w !== null && sigma !== null;
    expect(!both, "w and sigma", "one of them, as w = 1 / sigma", `w ${w} and sigma ${sigma}`);
    return sigma !== null ? 1 / sigma : (w ?? 1);
  }
  return scale ?? (score === "dot_product" && D > 0 ? 1 / Math.sqrt(D) : 1);
}

class Attnext {
  #exports;
  #memory;

  constructor(exports) {
    this.#exports = exports;
    this.#memory = new Memory(exports);
  }

  /** Return the masks as fields of web_call; their arrays are copied into the memory. */
  #masks(options, sizes) {
    const fields = { empty_rows: EMPTY_ROWS.indexOf(options.empty_rows) };
    if (options.valid_lens !== null) {
      const { perQuery, data } = lengths(options.valid_lens, sizes);
      fields.lens_per_query = Number(perQuery);
      fields.lens = this.#memory.put(data, Int32Array);
      fields.room = this.#memory.take(8 * data.length);
    }
    if (options.mask !== null) {
      const rows = sizes.M === undefined ? [] : [sizes.M];
      const bytes = maskBytes(options.mask, [...sizes.leading, ...rows, sizes.N]);
      fields.mask = this.#memory.put(bytes, Uint8Array);
    }
    const [left, right] = options.window ?? [-1, -1];
    Object.assign(fields, { has_left: Number(left >= 0), left });
    Object.assign(fields, { has_right: Number(right >= 0), right });
    if (options.causal) {
      Object.assign(fields, { has_right: 1, right: 0 });
    }
    return { ...fields, offset: options.causal_offset ?? 0 };
  }

  #call(fields) {
    const at = this.#memory.take(4 * FIELDS.length);
    const view = new DataView(this.#memory.memory.buffer, at);
    FIELDS.forEach((name, i) => {
      const value = fields[name] ?? 0;
      FLOATS.has(name) ? view.setFloat32(4 * i, value, true) : view.setInt32(4 * i, value, true);
    });
    return at;
  }

  #attention(score, inputs, givenOptions) {
    const { arrays, options, sizes } = readCall(score, inputs, givenOptions);
    const { queries, keys, values, ...parameters } = arrays;
    const { leading, B, M, N, Q, V, K = Q, H = 0 } = sizes;
    const memory = this.#memory;
    memory.clear();
    const fields = this.#masks(options, sizes);
    Object.values(parameters).forEach((parameter, i) => {
      fields[`parameters${i}`] = memory.put(parameter.data);
    });
    const shapes = {
      scores: [...leading, M, N],
      weights: [...leading, M, N],
      output: [...leading, M, V],
      lse: [...leading, M],
    };
    for (const [name, shape] of Object.entries(shapes)) {
      fields[name] = memory.take(4 * size(shape));
    }
    const seed = BigInt(options.seed);
    Object.assign(fields, {
      score: SCORES.indexOf(score),
      B, M, N, H, Dq: Q, Dk: K, Dv: V,
      scale: scaleOf(score, options, Q),
      eps: options.eps ?? 0,
      softcap: options.softcap ?? 0,
      dropout_p: options.dropout_p,
      seed_low: Number(seed & 0xffffffffn),
      seed_high: Number(seed >> 32n),
      queries: memory.put(queries.data),
      keys: memory.put(keys.data),
      values: memory.put(values.data),
    });
    const call = this.#call(fields);
    const bytes = this.#exports.web_workspace(call) >>> 0; // a size_t, which arrives signed
    expect(bytes !== SIZE_MAX, "sizes", "a workspace of less than 4 GiB",
      `B ${B}, M ${M}, N ${N}, D ${Q}`);
    this.#exports.web_attention(call, memory.take(bytes));
    return Object.fromEntries(
      Object.entries(shapes).map(([name, shape]) => [name, memory.read(fields[name], shape)]),
    );
  }

  dot_product_attention(queries, keys, values, options) {
    return this.#attention("dot_product", { queries, keys, values }, options);
  }

  cosine_attention(queries, keys, values, options) {
    return this.#attention("cosine", { queries, keys, values }, options);
  }

  additive_attention(queries, keys, values, W_q, W_k, w_v, options) {
    return this.#attention("additive", { queries, keys, values, W_q, W_k, w_v }, options);
  }

  /** Nadaraya-Watson regression: queries and keys are points, values are known at the keys. */
  gaussian_attention(queries, keys, values, options) {
    return this.#attention("gaussian", { queries, keys, values }, options);
  }

  masked_softmax(X, valid_lens = null, options = {}) {
    const call = readCall("masked_softmax", { X, valid_lens }, options);
    const { B, M = 1, N } = call.sizes;
    const { shape, data } = call.arrays.X;
    const memory = this.#memory;
    memory.clear();
    const fields = { ...this.#masks(call.options, call.sizes), B, M, N };
    fields.scores = memory.put(data);
    fields.weights = memory.take(4 * size(shape));
    this.#exports.web_masked_softmax(this.#call(fields));
    return memory.read(fields.weights, shape);
  }
}

/** Instantiate the module from its address or its bytes. */
export async function load(source) {
  let bytes = source;
  if (source instanceof URL || typeof source === "string") {
    const response = await fetch(source);
    expect(response.ok, "source", `a module at ${source}`, `status ${response.status}`);
    bytes = await response.arrayBuffer();
  }
  const { instance } = await WebAssembly.instantiate(bytes, {});
  const missing = EXPORTS.filter((name) => !(name in instance.exports));
  expect(missing.length === 0, "source", "attnext.wasm", `a module without ${missing.join(", ")}`);
  instance.exports._initialize?.();
  return new Attnext(instance.exports);
}
