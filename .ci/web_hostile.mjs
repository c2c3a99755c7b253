// Odd arguments for csrc/web/attnext.js:  node web_hostile.mjs FOLDER
//
// FOLDER is what docs/site/playground.py writes. Every odd value is given as every argument of
// every function, then random combinations with a fixed seed. A call must raise a RangeError that
// names an argument, what was expected and what was given, or return numbers that depend on its
// arguments alone: the same after calls that filled the memory with other numbers.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = process.argv[2];
const { load, array } = await import(pathToFileURL(`${folder}/web/attnext.js`));
const attnext = await load(readFileSync(`${folder}/web/attnext.wasm`));

const [M, N, D, H] = [3, 5, 4, 6];
const filled = (...shape) => {
  const count = shape.reduce((a, b) => a * b, 1);
  return { shape, data: Float32Array.from({ length: count }, (_, i) => Math.sin(i + 1)) };
};
const INPUTS = { queries: filled(2, M, D), keys: filled(2, N, D), values: filled(2, N, 2) };
const PARAMETERS = { W_q: filled(H, D), W_k: filled(H, D), w_v: filled(H) };
const FUNCTIONS = {
  dot_product_attention: INPUTS,
  cosine_attention: INPUTS,
  gaussian_attention: INPUTS,
  additive_attention: { ...INPUTS, ...PARAMETERS },
  masked_softmax: { X: filled(2, M, N), valid_lens: null },
};
const OPTIONS = ["valid_lens", "mask", "causal", "causal_offset", "window", "empty_rows", "scale",
  "w", "sigma", "eps", "softcap", "dropout_p", "seed", "b_h", "misspelt"];

const detached = () => {
  const data = new Float32Array(6);
  structuredClone(data.buffer, { transfer: [data.buffer] });
  return { shape: [6], data };
};
const claims = (name, x, value) => Object.defineProperty(x, name, { value });
let reads = 0;
const ODD = [
  ...[NaN, Infinity, -Infinity, -0, 0, 1, 2, 100, -1, -2, 0.5, -0.5, 1.5, 1 - 2 ** -30],
  ...[2 ** 31 - 1, 2 ** 31, -(2 ** 31), -(2 ** 31) - 1, 2 ** 32, 2 ** 32 + 1, 2 ** 53, 2 ** 64],
  ...[1e39, -1e39, 1e300, 1e-39, 5e-324, "", "1", "-1", "nan", "abc", "x".repeat(999)],
  ...["9".repeat(20), "18446744073709551616"],
  ...[true, false, 0n, 1n, -1n, 2n ** 64n - 1n, 2n ** 64n, Symbol("s"), () => 1, new Date(0), {}],
  ...[[], [1], [1, 2], [1, 2, 3], [3, 4, 5, 6, 7, 8], [[1]], [[1, 2], [3]], [[1, 2, 3], [4, 5, 6]]],
  ...[[[[1]]], [NaN, 0], [-2, 0], [2 ** 31, 0], [0, 2 ** 31], [0.5, 0], ["0", "1"], [null, 1], [true]],
  ...[[, 1], [-1, -1], [2 ** 53, 1], [[], []], [1n, 2n]],
  ...[new Number(1), new String("nan"), new Boolean(true), { valueOf: () => 1 }, null, undefined],
  ...[new Float32Array(2), new Float64Array(6), new Int32Array([1, 2]), new ArrayBuffer(8)],
  ...[{ shape: [6], data: null }, { shape: null, data: new Float32Array(6) }, { data: [1], shape: [1] }],
  ...[{ shape: [6], data: new Float64Array(6) }, { shape: [6], data: new Int32Array(6) }],
  ...[{ shape: [6], data: new Uint32Array(6) }, { shape: [6], data: Array(6).fill(0) }, detached()],
  ...[{ shape: [6], data: new Float32Array(5) }, { shape: [6], data: new Float32Array(7) }],
  ...[{ shape: [2.5], data: new Float32Array(2) }, { shape: [-1], data: new Float32Array(1) }],
  ...[{ shape: ["6"], data: new Float32Array(6) }, { shape: [NaN], data: new Float32Array(0) }],
  ...[{ shape: "6", data: new Float32Array(6) }, { shape: { length: 1, 0: 6 }, data: new Float32Array(6) }],
  ...[{ shape: [2 ** 32 + 6], data: new Float32Array(6) }, filled(0)],
  ...[{ shape: [2 ** 16, 2 ** 16, 6], data: new Float32Array(0) }],
  ...[{ shape: [2 ** 31 - 1, 2 ** 31 - 1, 0, 4], data: new Float32Array(0) }],
  ...[{ shape: Array(999).fill(1), data: new Float32Array(1) }, { shape: [], data: new Float32Array(1) }],
  ...[{ shape: [0, 5], data: new Float32Array(0) }, { shape: [2, 0, 5], data: new Float32Array(0) }],
  { shape: [2, N, D], data: claims("length", new Float32Array(1), 2 * N * D) },
  { shape: [6], data: claims("constructor", new Float32Array(6), Float64Array) },
  { shape: [6], data: claims(Symbol.toStringTag, new Float64Array(6), "Float32Array") },
  { get shape() { return [reads++ === 0 ? 6 : 200]; }, data: new Float32Array(6) },
  { shape: [2, M, N], data: new Float32Array(2 * M * N).fill(1) },
  { shape: [2, M, N], data: new Uint8Array(2 * M * N).fill(2) },
  { shape: [2, M, N], data: new Float32Array(2 * M * N).fill(NaN) },
  array([[true, false, true, true, false]]),
  { shape: [M, N], data: new Uint8Array(M * N).fill(1) },
  filled(2, N, D), filled(1, N, D), filled(2, N, D + 1), filled(H), filled(H, D + 1), filled(1, H),
];

/** Fill the memory of the module with a number: a later call that reads too far shows it. */
function poison(number) {
  const values = { shape: [9, 999], data: new Float32Array(9 * 999).fill(number) };
  const keys = { shape: [9, 8], data: new Float32Array(72).fill(number) };
  attnext.dot_product_attention(keys, keys, values);
}

const bits = (result) =>
  JSON.stringify((result.data ? [result] : Object.values(result)).map(({ shape, data }) =>
    [shape, Array.from(new Uint32Array(data.slice().buffer))]));
const MESSAGE = /^[\w. ]+: expected .+, got .+$/s;
const good = () => bits(attnext.dot_product_attention(INPUTS.queries, INPUTS.keys, INPUTS.values));
const before = good();
const faults = [];
const counts = { refused: 0, computed: 0 };

/** Call twice in memories of different numbers; return what is wrong with the outcome, or null. */
function outcome(name, inputs, options) {
  const results = [];
  for (const number of [42, -7]) {
    poison(number);
    reads = 0;
    try {
      results.push(bits(attnext[name](...Object.values(inputs), options)));
    } catch (error) {
      if (!(error instanceof RangeError) || !MESSAGE.test(error.message)) {
        return `${error.constructor.name}: ${error.message}`;
      }
      if (error.message.length > 400) {
        return `a message of ${error.message.length} characters`;
      }
      results.push("refused");
    }
  }
  counts[results[0] === "refused" ? "refused" : "computed"] += 1;
  if (results[0] !== results[1]) {
    return "depends on what the memory held";
  }
  return good() === before ? null : "changes the calls after it";
}

function attempt(told, name, inputs, options) {
  const wrong = outcome(name, inputs, options);
  if (wrong) {
    faults.push(`${name}(${told}): ${wrong}`);
  }
}

/** Return whether a value is right for an option, by the rules of Python's functions. */
function isRight(option, x) {
  const number = typeof x === "number" && Number.isFinite(Math.fround(x));
  const whole = (least, most) => Number.isInteger(x) && x >= least && x <= most;
  const integers = (list) => Array.isArray(list) && [...list].every((n) => Number.isInteger(n) && n >= 0);
  const rules = {
    causal: () => typeof x === "boolean",
    causal_offset: () => whole(-(2 ** 31), 2 ** 31 - 1),
    empty_rows: () => x === "nan",
    scale: () => number,
    w: () => number,
    sigma: () => Number.isFinite(x) && x > 0 && Number.isFinite(Math.fround(1 / x)),
    eps: () => number && Math.fround(x) > 0,
    softcap: () => number && Math.fround(x) > 0,
    dropout_p: () => number && x >= 0 && Math.fround(x) < 1,
    seed: () => (Number.isSafeInteger(x) && x >= 0) || [0n, 1n, 2n ** 64n - 1n, "1"].includes(x),
    window: () =>
      Array.isArray(x) && x.length === 2 && [...x].every((n) => Number.isInteger(n) && n >= -1 && n < 2 ** 31),
    valid_lens: () => whole(0, Infinity) || (integers(x) && x.length === 2) ||
      (Array.isArray(x) && x.length === 2 && [...x].every((row) => integers(row) && row.length === M)),
    mask: () => // those of ODD that are not refused for their data
       x !== null && typeof x === "object" && ["", "5", `${M},5`, `2,${M},5`].includes(String(x.shape)),
    b_h: () => String(x?.shape) === "6",
    misspelt: () => false,
  };
  reads = 0;
  return rules[option]();
}

const told = (x) => {
  try {
    return typeof x === "object" ? JSON.stringify(x)?.slice(0, 60) : String(x).slice(0, 40);
  } catch {
    return typeof x;
  }
};
for (const [name, inputs] of Object.entries(FUNCTIONS)) {
  for (const odd of ODD) {
    for (const argument of Object.keys(inputs)) {
      attempt(`${argument} = ${told(odd)}`, name, { ...inputs, [argument]: odd }, {});
    }
    for (const option of OPTIONS) {
      const computed = counts.computed;
      attempt(`${option} = ${told(odd)}`, name, inputs, { [option]: odd });
      const usual = odd === null || odd === undefined ? option !== "misspelt" : false;
      if (counts.computed > computed && !usual && !isRight(option, odd)) {
        faults.push(`${name}(${option} = ${told(odd)}): computed`);
      }
    }
    attempt(`options = ${told(odd)}`, name, inputs, odd);
  }
}

// What is right is computed: a check that refuses everything would pass all of the above.
const RIGHT = [
  {}, null, undefined, { valid_lens: 3 }, { valid_lens: [2 ** 53, 0] },
  { valid_lens: [[1, 2, 3], [3, 2, 1]] },
  { window: [-1, 2 ** 31 - 1] }, { causal: true, causal_offset: -(2 ** 31) }, { softcap: 1e-30 },
  { dropout_p: 0.5, seed: 2n ** 64n - 1n }, { dropout_p: 0.5, seed: "18446744073709551615" },
  { mask: array([[true, false, true, true, false]].flat()) }, { scale: -1e-300 }, { empty_rows: "nan" },
];
for (const options of RIGHT) {
  const computed = counts.computed;
  attempt("right options", "dot_product_attention", INPUTS, options);
  if (counts.computed === computed) {
    faults.push(`refused though right: ${Object.keys(options ?? {})}`);
  }
}
const { queries, keys, values } = INPUTS;
const long = attnext.dot_product_attention(queries, keys, values, { valid_lens: [2 ** 53, 5] });
if (bits(long) !== before) {
  faults.push("lengths above N are not N");
}

// Sizes that multiply to more than a call can have.
const empty = (...shape) => ({ shape, data: new Float32Array(0) });
const most = 2 ** 31 - 1;
for (const [q, k, v] of [
  [empty(60000, 0), empty(60000, 0), empty(60000, 0)],
  [empty(0, 0), empty(most, 0), empty(most, 0)],
  [empty(0, most), empty(0, most), empty(0, 0)],
  [empty(most, 0), empty(0, 0), empty(0, most)],
  [empty(0, most, 0), empty(0, most, 0), empty(0, most, most)],
  [empty(65536, 65536, 0, 4), empty(65536, 65536, 0, 4), empty(65536, 65536, 0, 4)],
]) {
  attempt(told([q.shape, k.shape, v.shape]), "dot_product_attention", { q, k, v }, {});
}

// Random combinations, by a linear congruential generator.
let state = 12345;
const random = (count) => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 2 ** 32) * count);
};
const names = Object.keys(FUNCTIONS);
for (let i = 0; i < 3000; i++) {
  const name = names[random(names.length)];
  const inputs = { ...FUNCTIONS[name] };
  if (random(3) === 0) {
    inputs[Object.keys(inputs)[random(Object.keys(inputs).length)]] = ODD[random(ODD.length)];
  }
  const one = () => [OPTIONS[random(14)], ODD[random(ODD.length)]];
  const given = Array.from({ length: 1 + random(4) }, one);
  const call = given.map(([each, x]) => `${each} = ${told(x)}`).join(", ");
  attempt(call, name, inputs, Object.fromEntries(given));
}

// Nested lists of array(): ragged ones, and what is no number.
const RAGGED = [[[1, 2], [3], [4, 5, 6]], [1, [2]], [[1], 2], [[[1]], [2]]];
for (const nested of [...RAGGED, ["1"], [null], [, 1], [1n], [{}], "12", {}]) {
  try {
    faults.push(`array(${told(nested)}): ${array(nested).data.length} elements`);
  } catch (error) {
    if (!MESSAGE.test(error.message)) {
      faults.push(`array(${told(nested)}): ${error.message}`);
    }
  }
}

faults.slice(0, 40).forEach((fault) => console.log(fault));
const said = `${counts.refused} odd calls refused, ${counts.computed} computed`;
console.log(`${said}: ${faults.length || "no"} faults`);
process.exit(Number(faults.length > 0 || counts.computed < 100 || counts.refused < 1000));
