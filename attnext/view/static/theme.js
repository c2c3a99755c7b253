/* Follow the theme of the page. A page with light text is dark. */

import { luminance } from "./colour.js";

/** Keep `data-theme` of an element equal to the theme of the page. Return a stop function. */
export function followTheme(root) {
  const adapt = () => {
    const dark = luminance(getComputedStyle(root.parentElement ?? root).color) > 0.5;
    root.dataset.theme = dark ? "dark" : "light";
  };
  const themes = new MutationObserver(adapt);
  for (const element of [document.documentElement, document.body]) {
    themes.observe(element, { attributes: true });
  }
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", adapt);
  requestAnimationFrame(adapt);
  adapt();
  return () => {
    themes.disconnect();
    scheme.removeEventListener("change", adapt);
  };
}
