/*
 * A sentence as queries, keys and values. Nothing here is learned: a word's vector is the sum of
 * vectors of its letter groups, drawn from their names, so that words with common letters point the
 * same way; to which the positional encoding is added, as strongly as the reader likes.
 */

export const MOST = 20; // words of a sentence

const D = 32;
const LENGTH = 4.5; // of a word's vector: its score with itself is then about 3.6
const BUMP = 1.2; // half the width of a unit's window, in the additive score

/** The words of a text; each Chinese word, where the browser can tell them, else each character. */
export function wordsOf(text) {
  const chinese = /\p{Script=Han}/u.test(text);
  const parts =
    chinese && Intl.Segmenter
      ? [...new Intl.Segmenter("zh", { granularity: "word" }).segment(text)].map((x) => x.segment)
      : (text.match(/\p{Script=Han}|[\p{L}\p{N}'’-]+|[^\s\p{L}\p{N}]/gu) ?? []);
  return parts.filter((part) => part.trim()).slice(0, MOST);
}

/** Numbers of mean 0 and variance 1, the same for the same name on every machine. */
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

/** Groups of three letters, the ends marked, and the word itself; of Chinese each character. */
function groupsOf(word) {
  const marked = [...`<${word.toLowerCase()}>`];
  const length = /\p{Script=Han}/u.test(word) ? 1 : 3;
  const groups = marked.slice(length - 1).map((_, i) => marked.slice(i, i + length).join(""));
  return [...groups.filter((group) => !"<>".includes(group)), marked.join("")];
}

function vectorOf(word) {
  const sum = Array(D).fill(0);
  for (const group of groupsOf(word)) {
    drawn(group, D).forEach((x, d) => {
      sum[d] += x;
    });
  }
  const norm = Math.hypot(...sum) || 1;
  return sum.map((x) => (x / norm) * LENGTH);
}

/** The positional encoding of Vaswani et al. (2017), as attnext.positional_encoding. */
function encodingOf(position) {
  return Array.from({ length: D }, (_, d) => {
    const angle = position / 10000 ** ((d - (d % 2)) / D);
    return d % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

/** (words, D): each word's vector, and `position` times the encoding of its place. */
export function embed(words, position) {
  const data = words.flatMap((word, i) => {
    const encoding = encodingOf(i);
    return vectorOf(word).map((x, d) => x + position * encoding[d]);
  });
  return { shape: [words.length, D], data: Float32Array.from(data) };
}

/**
 * Parameters with which the additive score is high for vectors that are alike: of each direction
 * two units, tanh(x + b) - tanh(x - b), a window around x = 0, x being how far apart the two are.
 */
export function alike() {
  const directions = 24;
  const H = 2 * directions;
  const W_q = new Float32Array(H * D);
  for (let h = 0; h < directions; h++) {
    const direction = drawn(`direction ${h}`, D).map((x) => x / Math.sqrt(D));
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
