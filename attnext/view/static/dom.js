/* Create HTML and SVG elements. */

const SVG = "http://www.w3.org/2000/svg";
// Elements that can have the focus. The attribute keeps JupyterLab's shortcuts from using their keys,
// for example the arrow keys. JupyterLab looks for it on the element with the focus.
const FOCUSABLE = "button, input, select, [tabindex]";
const OWN_KEYS = "data-lm-suppress-shortcuts";

/** Return an HTML element with attributes and children. Children that are null are skipped. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Return an SVG element with attributes and children. */
export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace the children of an element. */
export function replace(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== false));
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  if (element.matches(FOCUSABLE)) {
    element.setAttribute(OWN_KEYS, "true");
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
