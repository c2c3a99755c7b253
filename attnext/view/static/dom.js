/* Elements, made in one line. */

const SVG = "http://www.w3.org/2000/svg";
// What may have the focus. JupyterLab's shortcuts would have its keys, the arrows among them, if the
// element itself did not say that they are not to: it asks the element before what is around it.
const FOCUSABLE = "button, input, select, [tabindex]";
const OWN_KEYS = "data-lm-suppress-shortcuts";

/** An element of HTML with attributes and children; a child that is null is left out. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same of SVG. */
export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Give an element these children in the place of those it has. */
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
