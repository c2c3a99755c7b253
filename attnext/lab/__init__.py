"""Check your own code: the smallest case that fails, and the misconception behind it.

Write a function of the chapter in NumPy or PyTorch, and pass it to `check`. `check` calls your
function on growing cases and compares the results with `attnext.reference`. If a case fails, the
verdict shows its inputs, with the expected numbers next to yours. If a known mistake gives the same
numbers as your function, the verdict says what you did and what to do instead.

>>> import numpy as np
>>> from attnext import lab
>>> def my_dot_product_scores(queries, keys):
...     return queries @ keys.swapaxes(-1, -2) / queries.shape[-1]
>>> try:
...     lab.check(my_dot_product_scores)
... except AssertionError as wrong:
...     print(wrong)
✗ dot_product_scores: wrong in case 1 of 6, all sizes equal
  You divide the scores by d. Divide them by sqrt(d).
  scores is wrong in 9 of 9 numbers, by at most 0.803.
<BLANKLINE>
  input
    queries = [[[1.3, 0.8, 1.0], [-1.1, 0.9, -0.2], [-0.2, 1.1, -0.4]]]
    keys = [[[-1.3, -0.5, -1.2], [-1.8, -0.1, 0.4], [-2.2, 0.0, 0.3]]]
<BLANKLINE>
  scores [0]
                     expected │                        got  difference
    -1.8995  -1.1662  -1.4780 │  -1.0967  -0.6733  -0.8533       █ ▓ █
     0.7044   1.0450   1.3625 │   0.4067   0.6033   0.7867       ▒ ▓ ▓
     0.1097   0.0520   0.1848 │   0.0633   0.0300   0.1067       ░ ░ ░

A failed check is an AssertionError with this text, so it fails a test in pytest, nbgrader or otter;
``lang="zh"`` gives the text in Chinese. `NAMES` lists the functions that can be checked, and
`MISCONCEPTIONS` lists the known mistakes. attnext calls your functions like this:

    sequence_mask(X, valid_len, value=0)
    masked_softmax(X, valid_lens)
    masked_softmax_backward(dweights, weights)
    dot_product_scores(queries, keys)
    dot_product_scores_backward(grad_output, queries, keys)
    dot_product_attention(queries, keys, values, valid_lens=None)
    dot_product_attention_backward(grad_output, queries, keys, values, valid_lens=None)
    additive_scores(queries, keys, W_q, W_k, w_v)
    additive_scores_backward(grad_output, queries, keys, W_q, W_k, w_v)
    additive_attention(queries, keys, values, W_q, W_k, w_v, valid_lens=None)
    additive_attention_backward(grad_output, queries, keys, values, W_q, W_k, w_v, valid_lens=None)
    gaussian_kernel(queries, keys, sigma)
    nadaraya_watson(x, x_train, y_train, sigma)
    leave_one_out(x, y)
    transpose_qkv(X, num_heads)
    transpose_output(X, num_heads)
    positional_encoding(num_steps, num_hiddens)

Arrays are batches of shape (B, M, D), as in d2l. There are exceptions: the arguments of
gaussian_kernel are (M, D) and (N, D), and those of nadaraya_watson and leave_one_out have one axis.
W_q is (H, Dq), as in torch.nn.Linear. A backward function returns the gradients of its arguments,
in the order of the arguments. gaussian_kernel returns the weights, whose rows sum to 1.

The files, from the inside out:

    book.py             the chapter in steps, each of which a mistake can replace
    misconceptions.py   what a misconception is: the chapter with some steps replaced
    wrong_softmax.py    the table of them: lengths, masks, softmax
    wrong_scores.py     ... scores, kernels, pooling
    wrong_gradients.py  ... backward passes
    wrong_layouts.py    ... heads, positions, examples
    cases.py            the inputs of the calls
    compare.py          when two answers are the same
    tasks.py            the table of functions: cases, right answers, tolerances
    time_limit.py       runs a function for a limited time
    reach.py            what a function calls and names
    surroundings.py     puts back what the student's code may change: generators, options, modes
    returned.py         reads what a function returned
    student.py          calls a student's function
    recognise.py        which misconception gives the same numbers
    explained.py        the sentences about a case that failed
    words.py            all words, in both languages: texts/
    tables.py           which numbers of a case are shown; text.py and html.py, how
    timing.py           how long it takes compared with attnext's
    verdict.py          Report and Wrong
    checking.py         the check
    assignments.py      a notebook's exercises as an assignment
    handout.py          `attnext lab DIR`, which writes them
"""

from attnext._hints import suggest_names as _suggest_names
from attnext.lab.checking import NAMES, check
from attnext.lab.misconceptions import Misconception
from attnext.lab.recognise import MISCONCEPTIONS
from attnext.lab.verdict import Report, Wrong

__all__ = ["MISCONCEPTIONS", "NAMES", "Misconception", "Report", "Wrong", "check"]

_suggest_names(__name__, __all__)


def __dir__() -> list[str]:
    """Return the names that completion offers: the public ones, not the files of the package."""
    return __all__
