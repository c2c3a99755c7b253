/*
 * The colour map of attnext.explain: red for positive numbers, blue for negative numbers. The
 * colours are transparent, so that they work on light and dark backgrounds.
 */

const ABOVE = [226, 74, 51];
const BELOW = [47, 109, 179];

/** Return the colour of a number. `top` has the strongest colour, 0 has none. */
export function colour(number, top) {
  if (!Number.isFinite(number) || number === 0 || !(top > 0)) {
    return "transparent";
  }
  const [r, g, b] = number > 0 ? ABOVE : BELOW;
  return `rgba(${r}, ${g}, ${b}, ${strength(Math.abs(number) / top).toFixed(3)})`;
}

/** Return the opacity for a fraction of the largest number. */
export function strength(part) {
  return 0.06 + 0.74 * Math.min(part, 1);
}

/** Return the lightness of a computed CSS colour, from 0 to 1. */
export function luminance(text) {
  const [r, g, b] = (text.match(/[\d.]+/g) ?? [0, 0, 0]).map(Number);
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}

/** Return a number as text with three or four significant digits. */
export function short(number) {
  if (number === undefined || number === null || Number.isNaN(number)) {
    return "NaN";
  }
  if (!Number.isFinite(number)) {
    return number > 0 ? "∞" : "−∞";
  }
  const size = Math.abs(number);
  if (size !== 0 && (size < 5e-4 || size >= 1e5)) {
    return minus(number.toExponential(1));
  }
  return minus(String(Number(number.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3))));
}

function minus(text) {
  return text.replaceAll("-", "−");
}
