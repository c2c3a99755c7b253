/*
 * The front end of attnext.view.View for anywidget, and the static view of a saved notebook. The
 * kernel and the front end exchange traits: `_request` goes to the kernel, `_result` comes back
 * with the number of its request, and `_at` is the selected cell.
 */

import { make } from "./dom.js";
import { mount } from "./view.js";

/** anywidget calls this once for each cell that shows the widget. */
function render({ model, el }) {
  let number = model.get("_request").number ?? 0;
  const waiting = new Map();
  const known = unpack(model.get("_picture"));
  const engine = {
    compute(request) {
      number += 1;
      const arrays = changed(request.arrays, known.request.arrays);
      model.set("_request", { number, options: request.options, lang: request.lang, arrays });
      model.save_changes();
      return new Promise((resolve) => waiting.set(number, resolve));
    },
    keep(at) {
      model.set("_at", at);
      model.save_changes();
    },
  };
  const request = { ...known.request, ...merged(known.request, model.get("_request")) };
  const last = unpack(model.get("_result"));
  const result = last.error ? null : last; // null: ask the kernel
  const state = { ...known, given: known.request.options, request, result, at: model.get("_at") };
  const handle = mount(el, engine, state);
  // The static copy for pages without a kernel is hidden while this view works.
  el.append(make("style", {}, `#${model.get("_twin")} { display: none; }`));
  const arrived = () => {
    const result = unpack(model.get("_result"));
    const resolve = waiting.get(result.number);
    waiting.delete(result.number);
    if (resolve) {
      resolve(result);
    } else {
      handle.show(result); // requested by another cell that shows this widget
    }
  };
  model.on("change:_result", arrived);
  return () => {
    model.off("change:_result", arrived);
    handle.destroy();
  };
}

/** Show a saved view without a kernel. */
function restore(id, saved) {
  const element = document.getElementById(id);
  if (element && getComputedStyle(element).display !== "none") {
    const { at, result, ...picture } = unpack(saved);
    mount(element, null, { ...picture, result, at });
  }
}

/** Return the arrays that differ from the arrays of the kernel. */
function changed(arrays, known) {
  const differ = Object.entries(arrays).filter(([name, array]) => array !== known[name]);
  return Object.fromEntries(
    differ.map(([name, { shape, data }]) => [name, { shape, data: new DataView(data.buffer) }]),
  );
}

function merged(known, request) {
  const { options, lang, arrays } = unpack(request);
  return {
    options: options ?? known.options,
    lang: lang ?? known.lang,
    arrays: { ...known.arrays, ...arrays },
  };
}

/** Convert arrays of bytes, or base64 text, to numbers. */
function unpack(value, name = "") {
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) {
    const bytes = new Uint8Array(value.buffer ?? value, value.byteOffset ?? 0, value.byteLength);
    return name === "masked" ? bytes : new Float32Array(bytes.slice().buffer);
  }
  if (typeof value === "string" && (name === "data" || name === "masked")) {
    return unpack(Uint8Array.from(atob(value), (letter) => letter.charCodeAt(0)), name);
  }
  if (Array.isArray(value)) {
    return value.map((each) => unpack(each, name));
  }
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, unpack(each, key)]));
  }
  return value;
}

export { restore };
export default { render };
