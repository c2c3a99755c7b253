/*
 * py_functions.c -- the exposed attention functions, as if it were Python, for each
 * score of attn.h:
 *
 *     def dot_product_attention(queries, keys, values, *parameters, valid_lens, ...):
 *         return attend(...)                      # output, or (output, weights, lse)
 *
 *     def dot_product_attention_backward(grad_output, queries, ...):
 *         return attend(...)                      # (dq, dk, dv, ...), or a named tuple
 *
 *     def dot_product_scores(queries, keys, *parameters, ...):
 *     def dot_product_scores_backward(grad_output, queries, ...):
 *
 *     def _multi_head_attention(queries, ..., return_kept=False):
 *     def _multi_head_attention_backward(grad_output, ..., kept=None):
 *         # for attnext.torch: the projections of the forward serve the backward too
 *
 *     def _dot_product_attention(queries, ...):
 *     def _dot_product_attention_backward(grad_output, queries, ...):
 *         # for attnext.torch: heads are read, and results written, inside rows
 *
 * A user who goes by arrays has MultiHeadAttention, which keeps the projections; the last
 * four are for attnext.torch, where autograd keeps them, and so they are arrays. What is
 * kept belongs to its call, as lse does: of another call with the same sizes it gives
 * wrong gradients. Of the dot product nothing is kept.
 */
#include "py_call.h"

#include <string.h>

/* ---- the functions --------------------------------------------------------------- */

static PyObject *
attend(PyObject *module, py_score_number number, py_form form, PyObject *const *args,
       Py_ssize_t nargs, PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    const py_score *score = &state->scores[number];
    PyObject *result = NULL;
    py_call call;

    py_begin(&call, score, form);
    if (py_parse(state, &score->signatures[form], args, nargs, kwnames, call.given) <
            0 ||
        py_read_call(state, &call, kwnames) < 0 || py_read_memory(state, &call) < 0 ||
        py_attend(state, &call) < 0) {
        goto done;
    }
    if (py_is_backward(form) && call.memory.kv != NULL) {
        py_clear_unused(&call.made);
    }
    result = py_is_backward(form) ? py_pack_gradients(state, &call)
                                  : py_pack_outputs(&call);
done:
    py_end(&call);
    return result;
}

/* A function is handed the module, not its score: some of each score's own. */
#define FUNCTION(SCORE, FORM)                                                  \
    static PyObject *SCORE##_##FORM(PyObject *module, PyObject *const *args,   \
                                    Py_ssize_t nargs, PyObject *kwnames)       \
    {                                                                          \
        return attend(module, SCORE_##SCORE, OF_##FORM, args, nargs, kwnames); \
    }
#define ADDRESS(SCORE, FORM) [SCORE_##SCORE][OF_##FORM] = PY_FASTCALL(SCORE##_##FORM),
#define OF_SCORE(MACRO, SCORE) \
    MACRO(SCORE, ATTENTION)    \
    MACRO(SCORE, ATTENTION_BACKWARD) MACRO(SCORE, SCORES) MACRO(SCORE, SCORES_BACKWARD)
#define OF_TORCH(MACRO, SCORE) MACRO(SCORE, KEEPING) MACRO(SCORE, KEEPING_BACKWARD)
#define OF_MULTI_HEAD(MACRO)     \
    MACRO(multi_head, ATTENTION) \
    MACRO(multi_head, ATTENTION_BACKWARD) OF_TORCH(MACRO, multi_head)

#define FUNCTIONS_OF(SCORE) OF_SCORE(FUNCTION, SCORE)
ATTN_SCORES(FUNCTIONS_OF)
OF_MULTI_HEAD(FUNCTION)
OF_TORCH(FUNCTION, dot)

static const PyCFunction functions[SCORE_COUNT][PY_FORMS] = {
#define ADDRESSES_OF(SCORE) OF_SCORE(ADDRESS, SCORE)
    ATTN_SCORES(ADDRESSES_OF) OF_MULTI_HEAD(ADDRESS) OF_TORCH(ADDRESS, dot)};

/* ---- the module ------------------------------------------------------------------ */

/* What state->scores[number] is, but for the named tuple. */
static int
describe_score(attnext_state *state, py_score_number number, const attn_score *which,
               const attn_score_info *about)
{
    py_score *score = &state->scores[number];
    const attn_parameter *parameter;
    *score = (py_score){.score = which, .about = about};
    for (; score->parameters < ATTN_PARAMETERS; score->parameters++) {
        parameter = &score->about->parameters[score->parameters];
        if (parameter->name == NULL) {
            break;
        }
        PyObject *name = PyUnicode_InternFromString(parameter->name);
        if (name == NULL) {
            return -1;
        }
        state->parameter_names[number][score->parameters] = name;
        score->own_key_size = score->own_key_size || strchr(parameter->shape, 'K');
    }
    py_write_signatures(score, number);
    return 0;
}

int
py_scores_exec(PyObject *module, attnext_state *state)
{
    static PyMethodDef methods[SCORE_COUNT * PY_FORMS + 1]; /* functions point there */
    static const attn_score *const scores[] = {
#define ADDRESS_OF(SCORE) &attn_score_##SCORE,
        ATTN_SCORES(ADDRESS_OF) & attn_score_dot};
    PyMethodDef *method = methods;

    for (int i = 0; i < SCORE_COUNT; i++) {
        const attn_score_info *about = i == SCORE_multi_head ? &attn_multi_head
                                                             : attn_about(scores[i]);
        if (describe_score(state, (py_score_number)i, scores[i], about) < 0) {
            return -1;
        }
        for (int j = 0; j < PY_FORMS; j++) {
            const py_function function = {&state->scores[i].signatures[j],
                                          functions[i][j]};
            if (function.function != NULL &&
                py_fill_method(state, &function, 0, method++) < 0) {
                return -1;
            }
        }
    }
    return PyModule_AddFunctions(module, methods) < 0 ? -1
                                                      : py_fill_tables(module, state);
}
