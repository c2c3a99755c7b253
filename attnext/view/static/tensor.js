/* The matrix of a step's array that is selected. */

const LEADING = new Set(["batch", "group", "head"]);
const WEIGHTS = ["weights", "softmax", "given", "again"]; // keys of attention weights
// The steps that are always in the row. Other steps appear while they are selected.
const MAIN = ["raw", "scaled", "scaled_by", "additive", "gaussian", "cosine", "X"];
const LATER = ["softcap", "bias", "masked", "weights", "softmax", "kept", "output", "mixed"];

/** Return the steps of the row: the last score, the later steps, the output; or all steps. */
export function mainSteps(steps) {
  const scores = steps.filter((step) => MAIN.includes(step.key)).at(-1);
  const later = steps.filter((step) => LATER.includes(step.key));
  return later.length ? steps.filter((step) => step === scores || later.includes(step)) : steps;
}

/** Return what all panels share: weights, leading axes, numbers of queries and keys. */
export function frameOf(steps) {
  const weights =
    steps.findLast((step) => WEIGHTS.includes(step.key) && step.data) ??
    steps.findLast((step) => step.data && step.axes.at(-1) === "key");
  const of = weights ?? steps.at(-1);
  const lead = [];
  of.axes.slice(0, -2).forEach((kind, i) => {
    lead.push({ kind, size: of.shape[i] });
  });
  const rows = of.shape.length > 1 ? of.shape.at(-2) : 1;
  return { weights, key: of.key, lead, rows, columns: of.shape.at(-1) ?? 1 };
}

/** Return the key with the largest weight of the selected query. */
export function strongest(frame, at) {
  if (!frame.weights) {
    return 0;
  }
  const matrix = slice(frame.weights, frame, at);
  let best = 0;
  for (let j = 1; j < frame.columns; j++) {
    best = matrix.number(at.row, j) > matrix.number(at.row, best) ? j : best;
  }
  return best;
}

/** Return the matrix of an array at the selected head and batch element. */
export function slice(step, frame, at) {
  const strides = stridesOf(step.shape);
  let [offset, from] = [0, 0];
  let free = [];
  step.axes.forEach((kind, i) => {
    const size = step.shape[i];
    const which = LEADING.has(kind)
      ? frame.lead.findIndex((axis, j) => j >= from && axis.kind === kind)
      : -1;
    if (which < 0) {
      free.push({ kind, size, stride: strides[i] });
      return;
    }
    from = which + 1;
    offset += strides[i] * shared(at.lead[which], frame.lead[which].size, size);
  });
  const entries = frame.lead.reduce((n, axis) => n * axis.size, 1);
  if (free[0]?.kind === "row" && free[0].size === entries * frame.rows) {
    const entry = frame.lead.reduce((n, axis, i) => n * axis.size + at.lead[i], 0);
    offset += entry * frame.rows * free[0].stride; // rows of a flattened array
    free[0] = { ...free[0], size: frame.rows };
  }
  while (free.length > 2) {
    offset += free[0].stride * (free[0].kind === "query" ? at.row : 0);
    free = free.slice(1);
  }
  const one = { kind: "", size: 1, stride: 0 };
  if (free.length === 1) {
    free = free[0].kind === "query" || free[0].kind === "row" ? [free[0], one] : [one, free[0]];
  }
  const [rows, columns] = free.length ? free : [one, one];
  const place = (i, j) => offset + i * rows.stride + j * columns.stride;
  return {
    rows,
    columns,
    number: (i, j) => step.data[place(i, j)],
    masked: (i, j) => Boolean(step.masked?.[place(i, j)]),
  };
}

/** Return the features of a row of an array (..., R, D) with the leading axes of the frame. */
export function vector(array, frame, at, row) {
  const D = array.shape.at(-1);
  const lead = array.shape.slice(0, -2);
  let flat = 0;
  lead.forEach((size, i) => {
    const axis = frame.lead[i];
    flat = flat * size + (axis ? shared(at.lead[i], axis.size, size) : 0);
  });
  const start = (flat * (array.shape.at(-2) ?? 1) + row) * D;
  return Array.from(array.data.subarray(start, start + D));
}

/** Return the index of a shared head, if there are fewer key heads than query heads. */
function shared(index, of, size) {
  return Math.floor((index * size) / of);
}

function stridesOf(shape) {
  const strides = shape.map(() => 1);
  for (let i = shape.length - 2; i >= 0; i--) {
    strides[i] = strides[i + 1] * shape[i + 1];
  }
  return strides;
}

/** Return the largest absolute value of the finite, unmasked numbers of a matrix. */
export function largest(matrix) {
  let top = 0;
  for (let i = 0; i < matrix.rows.size; i++) {
    for (let j = 0; j < matrix.columns.size; j++) {
      const size = Math.abs(matrix.number(i, j));
      if (Number.isFinite(size) && size > top && !matrix.masked(i, j)) {
        top = size;
      }
    }
  }
  return top;
}
