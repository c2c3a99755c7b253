// What the playground in FOLDER computes for the cases of web_bits.py:  node web_bits.mjs FOLDER <CASES
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = process.argv[2];
const part = (path) => import(pathToFileURL(`${folder}/${path}`));
const { load } = await part("web/attnext.js");
const { engineOf } = await part("playground/engine.js");
const bytes = readFileSync(`${folder}/web/attnext.wasm`);
const [attnext, engine] = [await load(bytes), await engineOf(bytes)];

const floats = ({ shape, bits }) => ({ shape, data: new Float32Array(Uint32Array.from(bits).buffer) });
const bits = ({ shape, data }) => ({ shape, bits: Array.from(new Uint32Array(data.slice().buffer)) });
const read = (x) => (x !== null && typeof x === "object" && "bits" in x ? floats(x) : x);
const readAll = (named) =>
  Object.fromEntries(Object.entries(named).map(([name, x]) => [name, read(x)]));

function compute({ call, inputs, options }) {
  const result = attnext[call](...inputs.map(read), readAll(options));
  return result.data
    ? { weights: bits(result) }
    : Object.fromEntries(Object.entries(result).map(([name, x]) => [name, bits(x)]));
}

function explain(request) {
  const { title, call, steps } = engine.compute({ ...request, arrays: readAll(request.arrays) });
  const told = ({ data, masked, shape, ...words }) => ({
    ...words,
    ...bits({ shape, data: Float32Array.from(data) }),
    masked: masked && Array.from(masked),
  });
  return { title, call, steps: steps.map(told) };
}

const { calls, requests } = JSON.parse(readFileSync(0, "utf8"));
const results = { calls: calls.map(compute), requests: requests.map(explain) };
process.stdout.write(JSON.stringify(results));
