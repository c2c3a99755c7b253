/*
 * The playground's engine: what attnext.view's view.js asks of one, by the C core as WebAssembly.
 * The steps are those of attnext.explain, in its words; scores, weights and output are the core's.
 */

import { load } from "../web/attnext.js";
import { conditions, emptyRows, liveness } from "./pairs.js";
import { Inputs, SCORES } from "./scores.js";
import { Steps, general } from "./steps.js";

const PARAMETERS = { additive_attention: ["W_q", "W_k", "w_v"] };
const IN_ORDER = ["valid_lens", "scale", "w", "sigma", "eps", "softcap", "causal", "causal_offset"];
const BEHIND = ["window", "dropout_p", "seed", "empty_rows"];
const FLOATS = new Set(["scale", "w", "sigma", "eps", "softcap", "dropout_p"]);

/** An engine from where the module lies, or from its bytes. */
export async function engineOf(source) {
  const attnext = await load(source);
  return { compute: (request) => explain(attnext, request) };
}

/** A request of a regression in words of the attention that it is. */
function asAttention({ function: name, arrays, options, lang }) {
  const known = Object.fromEntries(Object.entries(options).filter(([, x]) => x != null));
  const given = { name, arrays, options: known, lang };
  if (name !== "nadaraya_watson") {
    return given;
  }
  const column = ({ data }) => ({ shape: [data.length, 1], data });
  const { x, x_train, y_train } = arrays;
  const sigma = known.sigma ?? 1;
  return {
    ...given,
    name: "gaussian_attention",
    arrays: { queries: column(x), keys: column(x_train), values: column(y_train) },
    options: { sigma },
  };
}

function explain(attnext, request) {
  const { name, arrays, options, lang } = asAttention(request);
  const { queries, keys, values, b_h } = arrays;
  const parameters = (PARAMETERS[name] ?? []).map((each) => arrays[each]);
  const bias = b_h ? { b_h } : {};
  const compute = (others, pooled = values) =>
    attnext[name](queries, keys, pooled, ...parameters, { ...options, ...bias, ...others });
  const result = compute({});
  const leading = queries.shape.slice(0, -2);
  const N = keys.shape.at(-2);
  const live = liveness(options, leading, queries.shape.at(-2), N);
  const lead = leading.map((_, i) => (i === 0 ? "batch" : i < leading.length - 1 ? "group" : "head"));
  const inputs = new Inputs(arrays, live, lead);
  const steps = new Steps(lang);
  SCORES[name](inputs, steps, {
    arrays,
    options,
    scores: options.softcap == null ? result.scores : compute({ softcap: null }).scores,
    plain: name === "dot_product_attention" ? compute({ softcap: null, scale: 1 }).scores : null,
  });
  addWeights(steps, inputs, options, result);
  const kept = options.dropout_p ? compute({}, eyes(leading, N)).output : null; // weights of each value
  addOutput(steps, inputs, options, { ...result, kept });
  return steps.result(name, callText(name, arrays, options));
}

/** A unit matrix (..., N, N): of values, so that the output is the weights they are pooled with. */
function eyes(leading, N) {
  const shape = [...leading, N, N];
  const data = new Float32Array(shape.reduce((a, b) => a * b, 1));
  return { shape, data: data.map((_, at) => Number(Math.floor(at / N) % N === at % N)) };
}

/** From scores to weights. */
function addWeights(steps, { pairs, lead, live, masked, N }, options, { scores, weights }) {
  if (options.softcap != null) {
    steps.add("softcap", scores, pairs, masked, { cap: Math.fround(options.softcap) });
  }
  const rule = conditions(options);
  if (rule) {
    const numbers = {
      conditions: rule,
      live: live.reduce((a, b) => a + b, 0),
      pairs: live.length,
    };
    const data = scores.data.map((each, at) => (live[at] ? each : -Infinity));
    const part = { shape: scores.shape, data: Float32Array.from(live) };
    steps.add("takes_part", part, pairs, masked, numbers);
    steps.add("masked", { shape: scores.shape, data }, pairs, masked);
  }
  const empty = emptyRows(live, N);
  const count = empty.reduce((a, b) => a + b, 0);
  if (count > 0) {
    const mode = options.empty_rows ?? "uniform";
    const fill = { uniform: `1/${N}`, zero: "0", nan: "NaN" }[mode];
    const rows = { shape: scores.shape.slice(0, -1), data: Float32Array.from(empty) };
    const numbers = { empty: count, rows: empty.length, mode, fill };
    steps.add("empty_rows", rows, [...lead, "query"], null, numbers);
  }
  steps.add("weights", weights, pairs, notPooled(masked, empty, N));
}

/** What of the weights is left, and the values that it averages. */
function addOutput(steps, { pairs, lead, live, masked, N }, options, { weights, kept, output }) {
  const p = options.dropout_p ?? 0;
  if (p > 0) {
    const unread = notPooled(masked, emptyRows(live, N), N);
    const keep = { shape: weights.shape, data: kept.data.map((each) => Number(each > 0)) };
    const count = (of) => of.reduce((sum, each, at) => sum + (unread[at] ? 0 : each), 0);
    const rule = `philox(seed=${options.seed ?? 0}) >= ${general(p)}`;
    const numbers = { rule, kept: count(keep.data), pairs: count(masked.map(() => 1)) };
    steps.add("keep", keep, pairs, unread, numbers);
    steps.add("kept", kept, pairs, unread, { p });
  }
  const numbers = { weights: p > 0 ? "kept" : "weights" };
  steps.add("output", output, [...lead, "query", "feature"], null, numbers);
}

/** Pairs whose value is not read: those that take no part, but in an empty row. */
function notPooled(masked, empty, N) {
  return masked.map((each, at) => each & (1 - empty[Math.floor(at / N)]));
}

/** The call as Python writes it: numbers as they are, arrays as shapes. */
function callText(name, arrays, options) {
  const shapes = Object.entries(arrays).map(([each, { shape }]) => {
    const inside = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
    return `${each} (${inside})`;
  });
  const written = [...IN_ORDER, ...BEHIND]
    .filter((each) => options[each] != null && options[each] !== false)
    .map((each) => `${each}=${asPython(each, options[each])}`);
  return `${name}(${[...shapes, ...written].join(", ")})`;
}

function asPython(name, x) {
  if (x === true) {
    return "True";
  }
  if (Array.isArray(x)) {
    const inside = x.map((each) => asPython("", each)).join(", ");
    return name === "window" ? `(${inside})` : `[${inside}]`;
  }
  if (typeof x === "string") {
    return `'${x}'`;
  }
  return FLOATS.has(name) && Number.isInteger(x) ? `${x}.0` : String(x);
}
