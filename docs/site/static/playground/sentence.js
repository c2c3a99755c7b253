/*
 * A sentence as queries, keys and values. Nothing here is learned: a word's vector has a 1 for each
 * of its letter groups and is then made one long, so words with common letters point in similar
 * directions. The first page of the site has the same in Python.
 */

export const MOST = 20; // words of a sentence

const BUMP = 1.2; // half the width of a unit's window, in the additive score
const SPREAD = 0.8; // of a direction's components: differences of vectors then spread over a window

/** Return the words of a text: Chinese words if the browser can split them, else characters. */
export function wordsOf(text) {
  const chinese = /\p{Script=Han}/u.test(text);
  const parts =
    chinese && Intl.Segmenter
      ? [...new Intl.Segmenter("zh", { granularity: "word" }).segment(text)].map((x) => x.segment)
      : (text.match(/\p{Script=Han}|[\p{L}\p{N}'’-]+|[^\s\p{L}\p{N}]/gu) ?? []);
  return parts.filter((part) => part.trim());
}

/** Return numbers of mean 0 and variance 1: the same for the same name on every machine. */
function drawn(name, count) {
  let state = 2166136261;
  for (const letter of name) {
    state = Math.imul(state ^ letter.codePointAt(0), 16777619);
  }
  const uniform = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  return Array.from({ length: count }, () => (uniform() * 2 - 1) * Math.sqrt(3));
}

/** Return the groups of three letters, with the ends marked; of a Chinese word its characters. */
function groupsOf(word) {
  if (/\p{Script=Han}/u.test(word)) {
    return new Set(word);
  }
  const letters = [...`<${word.toLowerCase()}>`];
  return new Set(letters.slice(2).map((_, i) => letters.slice(i, i + 3).join("")));
}

/** Return the positional encoding of Vaswani et al. (2017), as attnext.positional_encoding. */
function encodingOf(position, D) {
  return Array.from({ length: D }, (_, d) => {
    const angle = position / 10000 ** ((d - (d % 2)) / D);
    return d % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

/** Return (words, D): each word's vector plus `position` times the encoding of its position. */
export function embed(words, position) {
  const own = words.map(groupsOf);
  const all = [...new Set(own.flatMap((groups) => [...groups]))];
  const share = position / Math.sqrt(all.length / 2); // an encoding is sqrt(D / 2) long
  const data = own.flatMap((groups, i) => {
    const encoding = encodingOf(i, all.length);
    const one = 1 / Math.sqrt(groups.size);
    return all.map((group, d) => (groups.has(group) ? one : 0) + share * encoding[d]);
  });
  return { shape: [words.length, all.length], data: Float32Array.from(data) };
}

/** Return the positions of the two different words with the most in common. */
export function mostAlike(words) {
  const { shape, data } = embed(words, 0);
  const row = (i) => data.subarray(i * shape[1], (i + 1) * shape[1]);
  const found = { row: 0, column: 0, score: 0 };
  words.forEach((word, i) => {
    words.slice(0, i).forEach((other, j) => {
      const score = row(i).reduce((sum, x, d) => sum + x * row(j)[d], 0);
      const differ = word.toLowerCase() !== other.toLowerCase();
      if (differ && score > found.score) {
        Object.assign(found, { row: j, column: i, score });
      }
    });
  });
  return { row: found.row, column: found.column };
}

/**
 * Return parameters with which the additive score is high for similar vectors (of D features): for
 * each direction two units, tanh(x + b) - tanh(x - b), a window around x = 0, where x is how far
 * the two vectors are apart.
 */
export function alike(D) {
  const directions = 24;
  const H = 2 * directions;
  const W_q = new Float32Array(H * D);
  for (let h = 0; h < directions; h++) {
    const direction = drawn(`direction ${h}`, D).map((x) => x * SPREAD);
    W_q.set(direction, h * D);
    W_q.set(direction, (directions + h) * D);
  }
  const signs = Float32Array.from({ length: H }, (_, h) => (h < directions ? 1 : -1));
  return {
    W_q: { shape: [H, D], data: W_q },
    W_k: { shape: [H, D], data: W_q.map((x) => -x) },
    w_v: { shape: [H], data: signs.map((x) => x / 4) },
    b_h: { shape: [H], data: signs.map((x) => x * BUMP) },
  };
}
