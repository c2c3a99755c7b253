/*
 * py_functions.c -- the exposed attention functions, as if it were Python, for each
 * score of attn.h:
 *
 *     def dot_product_attention(queries, keys, values, *parameters, valid_lens, ...):
 *         call = read_options(...)
 *         return forward(call)                     # output, or (output, weights, lse)
 *
 *     def dot_product_attention_backward(grad_output, queries, ...):
 *         return backward(call)                    # (dq, dk, dv, ...), or a named tuple
 *
 *     def dot_product_scores(queries, keys, *parameters, ...):
 *         return scores(call)
 *
 *     def dot_product_scores_backward(grad_output, queries, ...):
 *         return scores_backward(call)             # (dq, dk, ...), or a named tuple
 *
 *     def _multi_head_attention(queries, ..., return_kept=False):
 *     def _multi_head_attention_backward(grad_output, ..., kept=None):
 *         # for attnext.torch: the projections of the forward serve the backward too
 *
 * The signatures follow from what the score says of itself and from py_options.def.
 */
#include "py_call.h"

#include <string.h>

/* ---- calls ----------------------------------------------------------------------- */

static int
read_call(const attnext_state *state, const py_score *score,
          const py_signature *signature, PyObject *const *args, Py_ssize_t nargs,
          PyObject *kwnames, py_call *call, PyObject **owned)
{
    call->score = score;
    call->options = (py_options){0};
    call->keeps_inputs = false;
    call->memory = NULL;
    *owned = NULL;
    if (py_parse_plain(state, signature, args, nargs, kwnames, call->given, owned) <
        0) {
        return -1;
    }
    PyObject *keep = call->given[ARG_RETURN_KEPT];
    if (keep != NULL && py_read_flag(keep, "return_kept", &call->options.return_kept)) {
        return -1;
    }
    if (kwnames != NULL && py_read_options(call) < 0) { /* options are keywords */
        return -1;
    }
    return py_read_memory(state, call);
}

/* A tuple of the objects; not a tuple if it would have one entry. */
static PyObject *
pack(PyObject *const *objects, int count)
{
    PyObject *result = count == 1 ? Py_NewRef(objects[0]) : PyTuple_New(count);
    for (int i = 0; count > 1 && result != NULL && i < count; i++) {
        PyTuple_SET_ITEM(result, i, Py_NewRef(objects[i]));
    }
    return result;
}

/* The output, or a tuple of it and what was asked for: weights, lse, kept. */
static PyObject *
results_of(const attnext_state *state, const py_score *score,
           const py_signature *signature, PyObject *const *args, Py_ssize_t nargs,
           PyObject *kwnames)
{
    py_call call;
    py_inputs in;
    py_outputs outputs;
    PyObject *owned, *result = NULL;

    if (read_call(state, score, signature, args, nargs, kwnames, &call, &owned) < 0 ||
        py_forward(state, &call, &in, &outputs) < 0) {
        goto done;
    }
    PyArrayObject *more[] = {outputs.weights, outputs.lse, outputs.kept};
    PyObject *parts[4] = {(PyObject *)outputs.output};
    int count = 1;
    for (int i = 0; i < 3; i++) {
        if (more[i] != NULL) {
            parts[count++] = (PyObject *)more[i];
        }
    }
    result = pack(parts, count);
    py_inputs_clear(&in);
    py_outputs_clear(&outputs);
done:
    Py_XDECREF(owned);
    return result;
}

static PyObject *
forward(PyObject *module, py_score_number number, PyObject *const *args,
        Py_ssize_t nargs, PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    const py_score *score = &state->scores[number];
    return results_of(state, score, &score->forward, args, nargs, kwnames);
}

static PyObject *
float32_of(float x)
{
    PyObject *scalar = PyArrayScalar_New(Float);
    if (scalar != NULL) {
        PyArrayScalar_ASSIGN(scalar, Float, x);
    }
    return scalar;
}

PyObject *
py_pack_gradients(const py_call *call, const py_gradients *d,
                  PyObject *parts[PY_GRADIENTS], int count)
{
    PyObject *scale = NULL;
    if (call->options.return_grad_bias) {
        parts[count++] = py_or_none(d->bias);
    }
    if (call->options.return_grad_sink) {
        parts[count++] = py_or_none(d->sink);
    }
    if (call->options.return_grad_scale) {
        scale = d->scales != NULL ? Py_NewRef(d->scales) : float32_of(d->scale);
        if (scale == NULL) {
            return NULL;
        }
        parts[count++] = scale;
    }
    PyObject *result = pack(parts, count);
    Py_XDECREF(scale);
    return result;
}

/* dq, dk, dv, but for the scores alone; then those of the parameters, as a named tuple
 * if there are any (in which dv stays, as None); that of a bandwidth; and what was asked
 * for: those of bias and sink, None without one, and of a scale that is a factor. Of a
 * memory dk and dv are those of what is projected, and who projects gets None. */
static PyObject *
pack_gradients(const py_call *call, const py_gradients *d)
{
    const py_score *score = call->score;
    PyArrayObject *keys = call->memory == NULL ? d->keys : d->projected;
    PyObject *parts[PY_GRADIENTS] = {(PyObject *)d->queries, (PyObject *)keys,
                                     py_or_none(d->values)};
    PyObject *scale = NULL, *named = NULL, *result = NULL;
    int count = d->values != NULL || score->Gradients != NULL ? 3 : 2;

    if (score->Gradients != NULL) {
        for (int i = 0; i < score->parameters; i++) {
            parts[count++] = py_or_none(d->parameters[i]);
        }
        named = PyObject_Vectorcall(score->Gradients, parts, (size_t)count, NULL);
        if (named == NULL) {
            return NULL;
        }
        parts[0] = named;
        count = 1;
    }
    bool bandwidth = score->about->scale == ATTN_SCALE_BANDWIDTH;
    if (bandwidth) {
        scale = float32_of(d->scale);
        if (scale == NULL) {
            goto done;
        }
        parts[count++] = scale;
    }
    result = py_pack_gradients(call, d, parts, count);
done:
    Py_XDECREF(scale);
    Py_XDECREF(named);
    return result;
}

static PyObject *
gradients_of(const attnext_state *state, const py_score *score,
             const py_signature *signature, PyObject *const *args, Py_ssize_t nargs,
             PyObject *kwnames)
{
    py_call call;
    py_inputs in;
    py_gradients gradients;
    PyObject *owned, *result = NULL;

    if (read_call(state, score, signature, args, nargs, kwnames, &call, &owned) == 0 &&
        py_backward(state, &call, &in, &gradients) == 0) {
        if (call.memory != NULL) {
            py_clear_unused(&gradients);
        }
        result = pack_gradients(&call, &gradients);
        py_inputs_clear(&in);
        py_gradients_clear(&gradients);
    }
    Py_XDECREF(owned);
    return result;
}

static PyObject *
backward(PyObject *module, py_score_number number, PyObject *const *args,
         Py_ssize_t nargs, PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    const py_score *score = &state->scores[number];
    return gradients_of(state, score, &score->backward, args, nargs, kwnames);
}

static PyObject *
scores_backward(PyObject *module, py_score_number number, PyObject *const *args,
                Py_ssize_t nargs, PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    const py_score *score = &state->scores[number];
    return gradients_of(state, score, &score->scores_backward, args, nargs, kwnames);
}

static PyObject *
scores(PyObject *module, py_score_number number, PyObject *const *args,
       Py_ssize_t nargs, PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    const py_score *score = &state->scores[number];
    PyObject *owned, *result = NULL;
    py_call call;

    if (read_call(state, score, &score->scores, args, nargs, kwnames, &call, &owned) ==
        0) {
        result = (PyObject *)py_scores(state, &call);
    }
    Py_XDECREF(owned);
    return result;
}

/* A function is handed the module, not its score: four of each score's own. */
#define FUNCTION(SCORE, VERB)                                                \
    static PyObject *SCORE##_##VERB(PyObject *module, PyObject *const *args, \
                                    Py_ssize_t nargs, PyObject *kwnames)     \
    {                                                                        \
        return VERB(module, SCORE_##SCORE, args, nargs, kwnames);            \
    }
#define FUNCTIONS(SCORE)     \
    FUNCTION(SCORE, forward) \
    FUNCTION(SCORE, backward) FUNCTION(SCORE, scores) FUNCTION(SCORE, scores_backward)
ATTN_SCORES(FUNCTIONS)
FUNCTION(multi_head, forward)
FUNCTION(multi_head, backward)

/* ---- for attnext.torch alone ----------------------------------------------------- */

/* A user who goes by arrays has MultiHeadAttention, which keeps the projections; these
 * are for attnext.torch, where autograd keeps them, and so they are arrays: multi-head
 * attention and its backward, with one option more. What is kept belongs to its call,
 * as lse does: of another call with the same sizes it gives wrong gradients. */
static py_signature keeping, keeping_backward;

static PyObject *
multi_head_keeping(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    return results_of(state, &state->scores[SCORE_multi_head], &keeping, args, nargs,
                      kwnames);
}

static PyObject *
multi_head_keeping_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    return gradients_of(state, &state->scores[SCORE_multi_head], &keeping_backward,
                        args, nargs, kwnames);
}

static const py_function keeping_functions[] = {
    {&keeping, PY_FASTCALL(multi_head_keeping)},
    {&keeping_backward, PY_FASTCALL(multi_head_keeping_backward)},
    {0},
};

/* ---- signatures ------------------------------------------------------------------ */

typedef struct {
    py_signature *signature;
    int count;
} signature_writer;

static void
add(signature_writer *w, py_arg arg)
{
    w->signature->args[w->count++] = (unsigned char)arg;
}

static void
add_parameters(signature_writer *w, const py_score *score, bool optional)
{
    for (int i = 0; i < score->parameters; i++) {
        if (score->about->parameters[i].optional == optional) {
            add(w, ARG_PARAMETER_0 + i);
        }
    }
}

/* takes: FORWARD; BACKWARD; or SCORES, for the scores alone, forward and backward; and
 * SCALED, backward, if so; and KEEPS, if so. */
static void
write_signature(py_signature *signature, const char *name, py_score_number number,
                const py_score *score, int takes, bool backward)
{
    const attn_score_info *about = score->about;
    signature_writer writer = {signature, 0}, *w = &writer;
    *signature = (py_signature){.function = name, .score = number};
    if (backward) {
        add(w, ARG_GRAD_OUTPUT);
    }
    add(w, ARG_QUERIES);
    add(w, ARG_KEYS);
    if (!(takes & SCORES)) {
        add(w, ARG_VALUES);
    }
    add_parameters(w, score, false);
    signature->required = w->count;
    if (!(takes & SCORES)) {
        add(w, ARG_VALID_LENS);
    }
    signature->positional = w->count;
    signature->keyword = about->has_heads ? ARG_NUM_HEADS : ARG_END;
#define SCORE_OPTION(ID, NAME, DEFAULT, TAKEN_BY, IF) \
    if ((takes & (TAKEN_BY)) != 0 && (IF)) {          \
        add(w, ARG_##ID);                             \
    }
#include "py_options.def"
    add_parameters(w, score, true);
#define OPTION(ID, NAME, DEFAULT, TAKEN_BY, ...)                   \
    if ((takes & (TAKEN_BY)) != 0 && !py_lacks(about, ARG_##ID)) { \
        add(w, ARG_##ID);                                          \
    }
#include "py_options.def"
    if (takes & KEEPS) {
        add(w, backward ? ARG_KEPT : ARG_RETURN_KEPT);
    }
}

/* ---- the module ------------------------------------------------------------------ */

/* "AdditiveGradients" of "additive". */
static PyObject *
gradients_name(const char *score)
{
    char name[64];
    int length = 0;
    for (const char *c = score; *c != '\0'; c++) {
        bool first = length == 0 || c[-1] == '_';
        if (*c != '_') {
            name[length++] = first ? (char)(*c - 'a' + 'A') : *c;
        }
    }
    name[length] = '\0';
    return PyUnicode_FromFormat("%sGradients", name);
}

/* collections.namedtuple of the gradients, so that it has _fields, _asdict and pickles. */
static int
make_gradients_type(PyObject *module, py_score *score)
{
    PyObject *collections = NULL, *fields = NULL, *type = NULL, *home = NULL;
    PyObject *name = gradients_name(score->about->name);
    int result = -1;

    fields = Py_BuildValue("[sss]", "queries", "keys", "values");
    for (int i = 0; fields != NULL && i < score->parameters; i++) {
        PyObject *field = PyUnicode_FromString(score->about->parameters[i].name);
        if (field == NULL || PyList_Append(fields, field) < 0) {
            Py_CLEAR(fields);
        }
        Py_XDECREF(field);
    }
    if (name == NULL || fields == NULL ||
        (collections = PyImport_ImportModule("collections")) == NULL) {
        goto done;
    }
    type = PyObject_CallMethod(collections, "namedtuple", "OO", name, fields);
    home = type == NULL ? NULL : PyUnicode_FromString("attnext");
    if (home != NULL && PyObject_SetAttrString(type, "__module__", home) == 0 &&
        PyObject_SetAttr(module, name, type) == 0) {
        score->Gradients = Py_NewRef(type);
        result = 0;
    }
done:
    Py_XDECREF(home);
    Py_XDECREF(type);
    Py_XDECREF(collections);
    Py_XDECREF(fields);
    Py_XDECREF(name);
    return result;
}

enum { VERBS = 4 }; /* functions of each score */

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
    static char names[SCORE_COUNT][VERBS][48]; /* functions point there */
    static const char *const forms[VERBS] = {"%s_attention", "%s_attention_backward",
                                             "%s_scores", "%s_scores_backward"};
    const int scaled = py_scaled(score->about);
    const int takes[VERBS] = {FORWARD, BACKWARD | scaled, SCORES, SCORES | scaled};
    py_signature *const to[VERBS] = {&score->forward, &score->backward, &score->scores,
                                     &score->scores_backward};
    for (int i = 0; i < VERBS; i++) {
        char *name = names[number][i];
        PyOS_snprintf(name, sizeof names[number][i], forms[i], score->about->name);
        write_signature(to[i], name, number, score, takes[i], i % 2 != 0);
    }
    return 0;
}

static int
add_keeping(PyObject *module, const attnext_state *state)
{
    static PyMethodDef methods[3]; /* functions point there */
    const py_score *score = &state->scores[SCORE_multi_head];
    write_signature(&keeping, "_multi_head_attention", SCORE_multi_head, score,
                    FORWARD | KEEPS, false);
    write_signature(&keeping_backward, "_multi_head_attention_backward",
                    SCORE_multi_head, score, BACKWARD | SCALED | KEEPS, true);
    return py_fill_methods(state, keeping_functions, 0, methods) < 0
               ? -1
               : PyModule_AddFunctions(module, methods);
}

static int
add_table(PyObject *module, const char *name, PyObject *table)
{
    int result = table == NULL ? -1 : PyModule_AddObjectRef(module, name, table);
    Py_XDECREF(table);
    return result;
}

int
py_scores_exec(PyObject *module, attnext_state *state)
{
    static PyMethodDef methods[VERBS * SCORE_COUNT + 1]; /* functions point there */
    static const PyCFunction functions[VERBS * SCORE_COUNT] = {
#define ADDRESSES(SCORE)                                         \
    PY_FASTCALL(SCORE##_forward), PY_FASTCALL(SCORE##_backward), \
        PY_FASTCALL(SCORE##_scores), PY_FASTCALL(SCORE##_scores_backward),
        ATTN_SCORES(ADDRESSES) PY_FASTCALL(multi_head_forward),
        PY_FASTCALL(multi_head_backward)};
    static const attn_score *const scores[] = {
#define ADDRESS(SCORE) &attn_score_##SCORE,
        ATTN_SCORES(ADDRESS) & attn_score_dot};
    PyMethodDef *method = methods;

    for (int i = 0; i < SCORE_COUNT; i++) {
        py_score *score = &state->scores[i];
        const attn_score_info *about = i == SCORE_multi_head ? &attn_multi_head
                                                             : attn_about(scores[i]);
        if (describe_score(state, (py_score_number)i, scores[i], about) < 0 ||
            (score->parameters > 0 && make_gradients_type(module, score) < 0)) {
            return -1;
        }
        const py_signature *const of[VERBS] = {&score->forward, &score->backward,
                                               &score->scores, &score->scores_backward};
        for (int j = 0; j < VERBS && functions[VERBS * i + j] != NULL; j++, method++) {
            const py_function function = {of[j], functions[VERBS * i + j]};
            if (py_fill_method(state, &function, 0, method) < 0) {
                return -1;
            }
        }
    }
    return PyModule_AddFunctions(module, methods) < 0 ||
                   add_keeping(module, state) < 0 ||
                   add_table(module, "OPTIONS", py_options_dict()) < 0 ||
                   add_table(module, "SCORES", py_scores_dict(state, false)) < 0 ||
                   add_table(module, "ATTENTIONS", py_scores_dict(state, true)) < 0 ||
                   add_table(module, "FOREIGN", py_foreign_list()) < 0
               ? -1
               : 0;
}
