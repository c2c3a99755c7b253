/* Which pairs of query and key take part, and what decides it. */

/** (..., M, N): 1 where query i attends to key j. */
export function liveness(options, leading, M, N) {
  const B = leading.reduce((a, b) => a * b, 1);
  const first = leading[0] ?? 1;
  const [left, right] = options.window ?? [-1, -1];
  const offset = options.causal_offset ?? 0;
  const live = new Uint8Array(B * M * N);
  for (let row = 0; row < B * M; row++) {
    const entry = Math.floor((Math.floor(row / M) * first) / B);
    const path = leading.length ? [entry, row % M] : [row % M];
    const length = lengthOf(options.valid_lens, path) ?? N;
    const i = (row % M) + offset;
    for (let j = 0; j < Math.min(length, N); j++) {
      const within = (left < 0 || i - left <= j) && (right < 0 || j <= i + right);
      live[row * N + j] = Number(within && !(options.causal && j > i));
    }
  }
  return live;
}

/** The length at the end of a path into nested lists, which may be less deep. */
function lengthOf(lengths, [first, ...others]) {
  return Array.isArray(lengths) ? lengthOf(lengths[first], others) : lengths;
}

/** The rule in letters, as attnext.explain writes it; empty if there is none. */
export function conditions(options) {
  const i = options.causal_offset ? "i + causal_offset" : "i";
  const [left, right] = options.window ?? [-1, -1];
  const rules = [
    [options.valid_lens != null, "j < valid_len"],
    [options.causal, `j <= ${i}`],
    [left !== -1, `${i} - ${left} <= j`],
    [right !== -1, `j <= ${i} + ${right}`],
  ];
  return rules
    .filter(([holds]) => holds)
    .map(([, rule]) => rule)
    .join(" and ");
}

/** 1 for each row of `width` that is without a 1. */
export function emptyRows(live, width) {
  const rows = width > 0 ? live.length / width : 0;
  return Uint8Array.from({ length: rows }, (_, row) =>
    Number(!live.subarray(row * width, (row + 1) * width).some((each) => each)),
  );
}

/** The keys (B, N) that no query of theirs attends to. */
export function idleKeys(live, M, N) {
  const idle = new Uint8Array((live.length / (M * N)) * N).fill(1);
  live.forEach((each, at) => {
    idle[Math.floor(at / (M * N)) * N + (at % N)] &= 1 - each;
  });
  return idle;
}
