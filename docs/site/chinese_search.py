"""The site's search: English as Sphinx has it, Chinese by pairs of characters.

Sphinx takes a run of Chinese characters for one word, so a reader finds a term only where it stands
between two punctuation marks. Here all neighbouring pairs of characters are words of the index, and
a query is split in the same way. Parts of a name in Python are words too: "softmax" finds
masked_softmax.
"""

from __future__ import annotations

import re

from sphinx.search.en import SearchEnglish

HAN = "\u3400-\u4dbf\u4e00-\u9fff"
WORD = re.compile(rf"[{HAN}]+|[^\W{HAN}]+")


def is_chinese(word: str) -> bool:
    return "\u3400" <= word[:1] <= "\u9fff"


class Search(SearchEnglish):
    """English and Chinese in one index."""

    js_splitter_code = r"""
function splitQuery(query) {
  const word = /\p{Script=Han}+|(?:(?!\p{Script=Han})[\p{Letter}\p{Number}_])+/gu;
  return (query.match(word) ?? []).flatMap((each) => {
    const letters = [...each];
    return /^\p{Script=Han}{2,}$/u.test(each)
      ? letters.slice(1).map((letter, i) => letters[i] + letter)
      : [each];
  });
}
"""

    def split(self, input: str) -> list[str]:
        """Return the words of a text, the pairs and characters of Chinese, the parts of names."""
        found = []
        for word in WORD.findall(input):
            if is_chinese(word):
                found += [*word, *(word[i : i + 2] for i in range(len(word) - 1))]
            else:
                found += [word, *(part for part in word.split("_") if part not in ("", word))]
        return found

    def word_filter(self, word: str) -> bool:
        """Return whether a word is put into the index; English ones as Sphinx decides."""
        return is_chinese(word) or bool(super().word_filter(word))
