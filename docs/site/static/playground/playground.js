/*
 * The pictures of the site that answer: each element with data-attnext gets one, of its kind.
 * attnext.view's module draws, as in a notebook; the C core computes, in the page.
 */

import { make, replace } from "../view/dom.js";
import { mount } from "../view/view.js";
import { engineOf } from "./engine.js";
import { MOST, alike, embed, mostAlike, wordsOf } from "./sentence.js";

const SAY = {
  en: {
    sentence: "Sentence",
    example: "The cats chased the cat that chased the mouse",
    score: "Score",
    position: "Weight of position",
    empty: "Type a sentence of at least one word to see its attention.",
    more: (left, all) =>
      `The picture has the first ${MOST} words; the last ${left} of ${all} are left out.`,
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
    position: "位置的权重",
    empty: "请输入一句话（至少一个词），这里就会画出它的注意力。",
    more: (left, all) => `共${all}个词，图中只有前${MOST}个，后${left}个没有画出。`,
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
// The options that each score begins with: vectors are one long, whatever the sentence.
const BEGIN = {
  dot_product_attention: { scale: 4 },
  cosine_attention: { scale: 6 },
  gaussian_attention: { sigma: 0.55 },
};

/** A sentence that attends to itself. */
class Sentence {
  constructor(element, engine, lang) {
    Object.assign(this, { engine, lang, say: SAY[lang] });
    this.text = make("input", { type: "text", value: this.say.example, maxlength: 200 });
    const names = Object.entries(this.say.scores);
    const option = ([value, text]) => make("option", { value }, text);
    this.score = make("select", {}, ...names.map(option));
    this.position = make("input", { type: "range", min: 0, max: 1.5, step: 0.05, value: 0 });
    this.note = make("p", { class: "playground-note", role: "status" });
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
      this.last.request.options = {};
      this.open();
    });
    replace(element, form, this.note, this.stage);
    this.open();
  }

  /** Draw the sentence in the field, or say what is missing; the reader's place is kept. */
  open() {
    const all = wordsOf(this.text.value);
    const words = all.slice(0, MOST);
    const left = all.length - words.length;
    const note = left ? this.say.more(left, all.length) : "";
    this.note.textContent = words.length ? note : this.say.empty;
    this.last = this.handle?.state ?? this.last;
    this.handle?.destroy();
    this.handle = null;
    if (words.length === 0) {
      return;
    }
    const name = this.score.value;
    const X = embed(words, Number(this.position.value));
    const before = this.last;
    const options = { ...BEGIN[name], ...before?.request.options };
    options.scale = BEGIN[name]?.scale; // what temperature 1 stands for
    this.handle = mount(this.stage, this.engine, {
      request: {
        function: name,
        arrays: {
          queries: X,
          keys: X,
          values: X,
          ...(name === "additive_attention" ? alike(X.shape[1]) : {}),
        },
        options,
        lang: before?.request.lang ?? this.lang,
      },
      result: null,
      labels: { queries: words, keys: words },
      controls: CONTROLS[name],
      at: before?.at ?? mostAlike(words),
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
