/* Steps are collected here, as attnext.explain has them: numbers come in, words are looked up. */

import { STEPS, TITLES } from "./words.js";

/** As Python's format(x, ".6g"). */
export function general(x, digits = 6) {
  if (x === 0 || !Number.isFinite(x)) {
    return x === 0 ? "0" : Number.isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf";
  }
  const [mantissa, exponent] = x.toExponential(digits - 1).split("e");
  const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  const e = Number(exponent);
  if (e < -4 || e >= digits) {
    return `${trimmed(mantissa)}e${e < 0 ? "-" : "+"}${String(Math.abs(e)).padStart(2, "0")}`;
  }
  return trimmed(x.toFixed(digits - 1 - e));
}

/** A template with what stands in its braces filled in: {name}, {name:.6g}, {name:g}, {name!r}. */
function fill(template, numbers) {
  return template.replace(/\{(\w+)(!r)?(:[.\w]+)?\}/g, (_, name, quoted, format) => {
    const x = numbers[name];
    return format ? general(x) : quoted ? `'${x}'` : String(x);
  });
}

export class Steps {
  constructor(lang) {
    this.lang = lang;
    this.steps = [];
  }

  /** Add the step of that key: an array, what its axes are called, and where no pair takes part. */
  add(key, { shape, data }, axes, masked = null, numbers = {}) {
    const [formula, en, zh] = STEPS[key];
    const [name, note] = this.lang === "zh" ? zh : en;
    const some = masked?.some((each) => each);
    this.steps.push({
      key,
      name,
      formula: fill(formula, numbers),
      note: fill(note, numbers),
      shape,
      data,
      axes,
      masked: some ? Uint8Array.from(masked) : null,
    });
  }

  result(name, call) {
    return { title: TITLES[name][this.lang], call, steps: this.steps };
  }
}
