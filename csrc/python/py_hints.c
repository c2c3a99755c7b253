/*
 * py_hints.c -- what other libraries call an argument, and what that is here: for those
 * who bring a call along from PyTorch, JAX, Keras, flash-attn or d2l.
 */
#include "py_attnext.h"

#define MULTIHEAD "True = attend (nn.MultiheadAttention's True = ignore: ~attn_mask)"

/* One bool a key, (B, N), for every head and query. */
#define OF_KEYS(NAME) \
    NAME "[:, None, None, :] where there are heads, " NAME "[:, None, :] where not"
#define OPPOSITE(NAME) "bools, True = attend, so the opposite: " OF_KEYS("~" NAME)

/* A name there, the argument here, and what differs, if anything does. Of several lines
 * with one name, a function gets the first whose argument it takes. */
static const struct {
    const char *foreign, *argument, *differs;
} hints[] = {
    /* queries, keys and values */
    {"query", "queries", NULL},
    {"q", "queries", NULL},
    {"key", "keys", NULL},
    {"k", "keys", NULL},
    {"value", "values", NULL},
    {"v", "values", NULL},
    {"scores", "X", NULL},
    {"input", "X", NULL},
    /* lengths */
    {"valid_len", "valid_lens", NULL},
    {"valid_lens", "valid_len", NULL},
    {"valid_length", "valid_lens", NULL},
    {"valid_length", "valid_len", NULL},
    {"enc_valid_lens", "valid_lens", NULL},
    {"lengths", "valid_lens", NULL},
    {"lengths", "valid_len", NULL},
    {"sequence_length", "valid_len", NULL},
    {"key_value_seq_lengths", "valid_lens", NULL},
    {"nonpad_kv_seqlen", "valid_lens", NULL},
    /* masks */
    {"attn_mask", "bias", "if it is of floats, and mask if of bools, " MULTIHEAD},
    {"attn_mask", "mask", MULTIHEAD},
    {"key_padding_mask", "mask", OPPOSITE("key_padding_mask")},
    {"src_key_padding_mask", "mask", OPPOSITE("src_key_padding_mask")},
    {"padding_mask", "mask", "bools, True = attend: " OF_KEYS("padding_mask")},
    {"attention_mask", "mask",
     "bools, True = attend: of (B, M, N), attention_mask[:, None] where there are "
     "heads; of (B, N), " OF_KEYS("attention_mask")},
    {"where", "mask", NULL},
    {"attn_bias", "bias", NULL},
    {"attention_bias", "bias", NULL},
    {"is_causal", "causal", NULL},
    {"use_causal_mask", "causal", NULL},
    {"window_size", "window",
     "a pair (left, right), -1 for no bound; flash_attn's diagonal ends at the last "
     "key: causal_offset=N - M"},
    {"local_window_size", "window",
     "a pair (left, right), -1 for no bound: (w, w) for one number w"},
    {"sliding_window", "window",
     "a pair (left, right): (n - 1, 0) for the last n keys, with causal"},
    {"axis", "X", "its last axis is the one that is normalised"},
    {"dim", "X", "its last axis is the one that is normalised"},
    /* numbers of the score */
    {"softmax_scale", "scale", NULL},
    {"sm_scale", "scale", NULL},
    {"scaling", "scale", NULL},
    {"bandwidth", "sigma", NULL},
    {"gamma", "w", "sqrt(2 * gamma)"},
    {"logits_soft_cap", "softcap", NULL},
    {"soft_cap", "softcap", NULL},
    {"s_aux", "sink", "s_aux[:, None] for one number for each head"},
    {"sinks", "sink", "sinks[:, None] for one number for each head"},
    /* dropout */
    {"dropout", "dropout_p", "which needs a seed"},
    {"dropout_rate", "dropout_p", "which needs a seed"},
    {"dropout_rng", "seed", "an int"},
    {"generator", "seed", "an int"},
    /* what comes back */
    {"need_weights", "return_weights", "a bool, False by default"},
    {"return_attention_scores", "return_weights", NULL},
    {"return_weights", "need_weights",
     "the weights are attention_weights, an attribute"},
    {"return_attention_scores", "need_weights",
     "the weights are attention_weights, an attribute"},
    {"return_residual", "return_lse", NULL},
};
enum { HINTS = sizeof hints / sizeof hints[0] };

/* Is there an argument of this signature called name? */
static bool
takes(const attnext_state *state, const py_signature *signature, const char *name)
{
    for (const unsigned char *arg = signature->args; *arg != ARG_END; arg++) {
        PyObject *own = py_argument_name(state, signature, *arg);
        if (PyUnicode_CompareWithASCIIString(own, name) == 0) {
            return true;
        }
    }
    return false;
}

int
py_unknown_keyword(const attnext_state *state, const py_signature *signature,
                   PyObject *keyword)
{
    for (int i = 0; i < HINTS; i++) {
        if (PyUnicode_CompareWithASCIIString(keyword, hints[i].foreign) == 0 &&
            takes(state, signature, hints[i].argument)) {
            const char *differs = hints[i].differs;
            PyErr_Format(PyExc_TypeError,
                         "%s() got an unexpected keyword argument '%U': here it is "
                         "%s%s%s",
                         signature->function, keyword, hints[i].argument,
                         differs == NULL ? "" : ", ", differs == NULL ? "" : differs);
            return -1;
        }
    }
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'",
                 signature->function, keyword);
    return -1;
}

PyObject *
py_foreign_list(void)
{
    PyObject *list = PyList_New(HINTS);
    for (int i = 0; list != NULL && i < HINTS; i++) {
        PyObject *row = Py_BuildValue("sss", hints[i].foreign, hints[i].argument,
                                      hints[i].differs ? hints[i].differs : "");
        if (row == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, row);
        }
    }
    return list;
}
