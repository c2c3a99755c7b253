/*
 * The pictures of the site that answer: each element with data-attnext gets one, of its kind.
 * attnext.view's module draws, as in a notebook; the C core computes, in the page.
 */

import { make, replace } from "../view/dom.js";
import { mount } from "../view/view.js";
import { engineOf } from "./engine.js";
import { alike, embed, wordsOf } from "./sentence.js";

const SAY = {
  en: {
    sentence: "Sentence",
    example: "The cats chased the cat that chased the mouse",
    score: "Score",
    position: "Position counts",
    scores: {
      dot_product_attention: "dot product",
      cosine_attention: "cosine",
      additive_attention: "additive",
      gaussian_attention: "Gaussian",
    },
    failed: (error) => `Nothing can be computed here: ${error}. It takes a browser of 2023 or later,
      and a page that comes from a server: python -m http.server`,
  },
  zh: {
    sentence: "句子",
    example: "他说他会来，她说她不会来",
    score: "评分函数",
    position: "位置的分量",
    scores: {
      dot_product_attention: "点积",
      cosine_attention: "余弦",
      additive_attention: "加性",
      gaussian_attention: "高斯核",
    },
    failed: (error) => `此处无法计算：${error}。需要2023年以后的浏览器，且网页须由服务器提供：
      python -m http.server`,
  },
};

const CONTROLS = {
  dot_product_attention: ["scale", "valid_lens", "causal", "window", "softcap", "dropout_p"],
  cosine_attention: ["scale", "valid_lens", "causal", "window"],
  additive_attention: ["valid_lens", "causal", "window", "softcap"],
  gaussian_attention: ["sigma", "valid_lens", "causal", "window"],
};
const BEGIN = { cosine_attention: { scale: 6 }, gaussian_attention: { sigma: 2.5 } };

/** A sentence that attends to itself. */
class Sentence {
  constructor(element, engine, lang) {
    Object.assign(this, { engine, lang, say: SAY[lang] });
    this.text = make("input", { type: "text", value: this.say.example, maxlength: 200 });
    const names = Object.entries(this.say.scores);
    const option = ([value, text]) => make("option", { value }, text);
    this.score = make("select", {}, ...names.map(option));
    this.position = make("input", { type: "range", min: 0, max: 1.5, step: 0.05, value: 0.3 });
    this.stage = make("div", {});
    const label = (text, input) => make("label", {}, make("span", {}, text), input);
    const form = make(
      "form",
      { class: "playground-form" },
      label(this.say.sentence, this.text),
      label(this.say.score, this.score),
      label(this.say.position, this.position),
    );
    form.addEventListener("submit", (event) => event.preventDefault());
    this.text.addEventListener("input", () => this.open());
    this.position.addEventListener("input", () => this.open());
    this.score.addEventListener("change", () => {
      this.handle.state.request.options = {};
      this.open();
    });
    replace(element, form, this.stage);
    this.open();
  }

  /** The picture of the sentence as it is, where the reader was looking. */
  open() {
    const words = wordsOf(this.text.value);
    if (words.length === 0) {
      return;
    }
    const name = this.score.value;
    const X = embed(words, Number(this.position.value));
    const before = this.handle?.state;
    this.handle?.destroy();
    const options = { ...BEGIN[name], ...before?.request.options };
    options.scale = BEGIN[name]?.scale; // what temperature 1 stands for
    this.handle = mount(this.stage, this.engine, {
      request: {
        function: name,
        arrays: {
          queries: X,
          keys: X,
          values: X,
          ...(name === "additive_attention" ? alike() : {}),
        },
        options,
        lang: before?.request.lang ?? this.lang,
      },
      result: null,
      labels: { queries: words, keys: words },
      controls: CONTROLS[name],
      at: before?.at ?? { row: Math.min(3, words.length - 1), column: 1 },
    });
  }
}

/** The regression of the book's section 11.2: 2 sin x + x^0.8 with noise, a curve through it. */
class Regression {
  constructor(element, engine, lang) {
    const line = (count, f) => {
      const data = Float32Array.from({ length: count }, (_, i) => f(i / (count - 1)));
      return { shape: [count], data };
    };
    const noise = (i) => 0.7 * Math.sin(12.9898 * i * i + 4.1 * i);
    const x_train = line(18, (t) => 5 * t);
    const y_train = {
      shape: [18],
      data: x_train.data.map((x, i) => 2 * Math.sin(x) + x ** 0.8 + noise(i)),
    };
    mount(element, engine, {
      request: {
        function: "nadaraya_watson",
        arrays: { x: line(61, (t) => 5 * t), x_train, y_train },
        options: { sigma: 0.4 },
        lang,
      },
      result: null,
      labels: {},
      controls: ["sigma"],
      at: { row: 24 },
    });
  }
}

const KINDS = { sentence: Sentence, regression: Regression };

const elements = [...document.querySelectorAll("[data-attnext]")];
const engine = engineOf(new URL("../web/attnext.wasm", import.meta.url));
for (const element of elements) {
  const lang = element.closest("[lang]").lang.startsWith("zh") ? "zh" : "en";
  try {
    new KINDS[element.dataset.attnext](element, await engine, lang);
  } catch (error) {
    element.textContent = SAY[lang].failed(error.message);
  }
}
performance.mark("attnext-shown");
