/*
 * py_docs.c -- docstrings, made of the tables: a signature as help() shows it, a
 * paragraph for each option (py_options.def), and what a score says of itself (attn.h).
 */
#include "py_docs.h"

#include "py_attnext.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- text that grows ------------------------------------------------------------- */

typedef struct {
    char *text;
    size_t used, room;
    bool lost; /* there was no memory */
} page;

static void
put_text(page *p, const char *text, size_t length)
{
    size_t needed = p->used + length + 1;
    if (needed > p->room) {
        p->room = 2 * needed;
        char *longer = PyMem_RawRealloc(p->text, p->room);
        if (longer == NULL) {
            PyMem_RawFree(p->text);
            *p = (page){.lost = true};
            return;
        }
        p->text = longer;
    }
    memcpy(p->text + p->used, text, length);
    p->used += length;
    p->text[p->used] = '\0';
}

/* What is formatted is at most a few lines; text as it stands may be as long as it
 * likes. */
static void
put(page *p, const char *format, ...)
{
    char lines[1024];
    va_list args;
    if (strchr(format, '%') == NULL) {
        put_text(p, format, strlen(format));
        return;
    }
    va_start(args, format);
    PyOS_vsnprintf(lines, sizeof lines, format, args);
    va_end(args);
    put_text(p, lines, strlen(lines));
}

/* Lines, indented. */
static void
put_indented(page *p, const char *lines)
{
    while (*lines != '\0') {
        size_t length = strcspn(lines, "\n");
        put_text(p, "    ", 4);
        put_text(p, lines, length);
        put_text(p, "\n", 1);
        lines += length + (lines[length] == '\n');
    }
}

static void
put_paragraph(page *p, const char *name, const char *type, const char *doc)
{
    put(p, "%s : %s\n", name, type);
    put_indented(p, doc);
}

/* "\nNotes\n-----\n" and the text; nothing without one. */
static void
put_section(page *p, const char *title, const char *text)
{
    if (text != NULL) {
        put(p, "\n%s\n%.*s\n", title, (int)strlen(title), "----------------");
        put_text(p, text, strlen(text));
        put_text(p, "\n", 1);
    }
}

/* The finished page; NULL and MemoryError. */
static char *
finished(page *p)
{
    if (p->lost) {
        PyMem_RawFree(p->text);
        PyErr_NoMemory();
        return NULL;
    }
    return p->text;
}

/* ---- what the table says of an argument ------------------------------------------ */

/* name(a, b=None, *, c=0) */
static void
put_signature(page *p, const attnext_state *state, const py_signature *signature)
{
    const char *comma = "";
    put(p, "%s(", signature->function);
    if (signature->method) {
        put(p, "$self");
        comma = ", ";
    }
    for (int i = 0; signature->args[i] != ARG_END; i++, comma = ", ") {
        py_arg arg = signature->args[i];
        const char *name = PyUnicode_AsUTF8(py_argument_name(state, signature, arg));
        put(p, "%s%s%s", comma, i == signature->positional ? "*, " : "", name);
        if (i >= signature->required && arg != signature->keyword) {
            put(p, "=%s", py_argument_rows[arg].standard);
        }
    }
    put(p, ")\n--\n\n");
}

/* The paragraph of an option. A backward refers to its forward. */
static void
put_option(page *p, py_arg arg, bool backward)
{
    const py_argument_row *row = &py_argument_rows[arg];
    bool known = backward && (row->taken_by & FORWARD);
    put_paragraph(p, row->name, row->type, known ? "As in the forward." : row->doc);
}

/* ---- functions that are no attention --------------------------------------------- */

static char *
function_doc(const attnext_state *state, const py_function *function)
{
    const py_signature *signature = function->signature;
    bool backward = strstr(signature->function, "_backward") != NULL;
    page p = {0};
    put_signature(&p, state, signature);
    put_text(&p, function->before, strlen(function->before));
    for (const unsigned char *arg = signature->args; *arg != ARG_END; arg++) {
        bool own = arg < signature->args + signature->required;
        if (py_argument_rows[*arg].doc != NULL && !own && function->after != NULL) {
            put_option(&p, *arg, backward);
        }
    }
    if (function->after != NULL) {
        put_text(&p, function->after, strlen(function->after));
    }
    return finished(&p);
}

int
py_fill_methods(const attnext_state *state, const py_function *functions, int flags,
                PyMethodDef *methods)
{
    int i = 0;
    for (; functions[i].signature != NULL; i++) {
        if (methods[i].ml_doc == NULL &&
            (methods[i].ml_doc = function_doc(state, &functions[i])) == NULL) {
            return -1;
        }
        methods[i].ml_name = functions[i].signature->function;
        methods[i].ml_meth = functions[i].function;
        methods[i].ml_flags = METH_FASTCALL | METH_KEYWORDS | flags;
    }
    return i;
}

/* ---- the functions of a score ---------------------------------------------------- */

/* "(H, Dq)" of the letters "HQ"; "(H,) or (1, H)" of "1H"; "(Hk,)" of "G". */
static const char *
shape_words(const char *letters, char words[64])
{
    static const char *const names[] = {['1'] = "1",  ['H'] = "H",  ['G'] = "Hk",
                                        ['Q'] = "Dq", ['K'] = "Dk", ['V'] = "Dv"};
    bool spare = letters[0] == '1';
    int used = 0, ndim = (int)strlen(letters);
    for (int from = spare; from >= 0; from--) {
        used += snprintf(words + used, 64 - (size_t)used, "%s(",
                         spare && from == 0 ? " or " : "");
        for (int i = from; i < ndim; i++) {
            used += snprintf(words + used, 64 - (size_t)used, "%s%s",
                             i > from ? ", " : "", names[(int)letters[i]]);
        }
        used += snprintf(words + used, 64 - (size_t)used,
                         ndim - from == 1 ? ",)" : ")");
    }
    return words;
}

static void
put_parameter(page *p, const attn_parameter *parameter)
{
    char words[64], type[96];
    snprintf(type, sizeof type, "array_like, shape %s%s",
             shape_words(parameter->shape, words),
             parameter->optional ? ", optional" : "");
    put_paragraph(p, parameter->name, type,
                  parameter->doc == NULL ? "A parameter of the score."
                                         : parameter->doc);
}

/* What help() calls the features of the output. */
static const char *
output_width(const py_score *score)
{
    return score->about->has_heads ? "H" : "Dv";
}

/* queries, keys and values; grad_output. */
static bool
put_operand(page *p, const py_score *score, py_arg arg, bool backward, bool scores)
{
    const char *Dq = score->own_key_size ? "Dq" : "D";
    const char *Dk = score->own_key_size ? "Dk" : "D";
    const char *as_before = "    As in the forward.\n";
    if (arg == ARG_GRAD_OUTPUT) {
        put(p,
            "grad_output : array_like, shape (..., M, %s)\n"
            "    Gradient of the loss with respect to the %s.\n" DOC_FLOAT32,
            scores ? "N" : output_width(score), scores ? "scores" : "output");
    } else if (arg == ARG_QUERIES) {
        put(p, "queries : array_like, shape (..., M, %s)\n", Dq);
        put(p,
            backward ? as_before
                     : "    M queries of %s features; any leading axes (batch, "
                       "heads), or none.\n" DOC_FLOAT32,
            Dq);
    } else if (arg == ARG_KEYS) {
        put(p, "keys : array_like, shape (..., N, %s)\n", Dk);
        put(p, "%s",
            backward ? as_before
                     : "    The keys; leading axes as those of `queries`.\n");
    } else if (arg == ARG_VALUES) {
        put(p, "values : array_like, shape (..., N, Dv)\n%s",
            backward ? as_before : "    The values, one for each key.\n");
    } else if (arg == ARG_VALID_LENS) {
        put(p, "%s",
            backward ? "valid_lens : None, int or array_like of integers, optional\n"
                       "    As in the forward.\n"
                     : DOC_VALID_LENS);
    } else {
        return false;
    }
    return true;
}

static void
put_arguments(page *p, const py_score *score, const py_signature *signature)
{
    bool scores = signature == &score->scores || signature == &score->scores_backward;
    bool backward = signature == &score->backward ||
                    signature == &score->scores_backward;
    put(p, "\nParameters\n----------\n");
    for (const unsigned char *arg = signature->args; *arg != ARG_END; arg++) {
        int parameter = *arg - ARG_PARAMETER_0;
        if (parameter >= 0 && parameter < ATTN_PARAMETERS) {
            put_parameter(p, &score->about->parameters[parameter]);
        } else if (!put_operand(p, score, *arg, backward, scores)) {
            put_option(p, *arg, backward);
        }
    }
}

static void
put_gradients(page *p, const py_score *score, bool scores)
{
    const attn_score_info *about = score->about;
    if (score->parameters > 0) {
        char name[PY_GRADIENTS_NAME];
        put(p, "gradients : %s\n", py_gradients_name(score, name));
        put(p, "    A named tuple of the gradients with respect to `queries`, `keys`,\n"
               "    `values`");
        for (int i = 0; i < score->parameters; i++) {
            put(p, i == 4 ? ",\n    `%s`" : ", `%s`", about->parameters[i].name);
        }
        put(p,
            ": float32 arrays, each in the\n"
            "    shape of what it belongs to; None for %s.\n",
            scores ? "`values`, and for a parameter not given"
                   : "a parameter not given");
    } else {
        put(p, scores ? DOC_GRADIENTS_OF_SCORES : DOC_GRADIENTS);
    }
    if (about->scale == ATTN_SCALE_BANDWIDTH) {
        put(p, "dw : float32\n"
               "    Gradient with respect to ``w = 1 / sigma``, whichever of the two "
               "was given.\n");
    }
    put(p, scores ? "" : DOC_GRADIENT_OF_BIAS);
    if (py_scaled(about)) {
        put(p, DOC_GRADIENT_OF_SCALE);
    }
}

static void
put_forward(page *p, const py_score *score, const attn_score_text *text)
{
    const char *name = score->about->name;
    put(p, "Pool values by %s.\n",
        text->pooling == NULL ? "the softmax of the scores of queries and keys"
                              : text->pooling);
    put_arguments(p, score, &score->forward);
    const char *heads = score->about->has_heads ? "num_heads, " : "";
    put(p, "\nReturns\n-------\noutput : ndarray, float32, shape (..., M, %s)\n",
        output_width(score));
    put(p, DOC_FORWARD_OUTPUT);
    put(p, "weights : ndarray, float32, shape (..., %sM, N)\n", heads);
    put(p, DOC_FORWARD_WEIGHTS);
    put(p, "lse : ndarray, float32, shape (..., %sM)\n", heads);
    put(p, DOC_FORWARD_LSE "\n" DOC_RAISES "\nSee Also\n--------\n");
    put(p, "%s_attention_backward : The gradients of this function.\n", name);
    if (!score->about->has_heads) {
        put(p, "%s_scores : The scores alone.\n", name);
    }
    if (text->see_also != NULL) {
        put(p, "%s\n", text->see_also);
    }
    put_section(p, "Notes", text->notes);
    put(p, DOC_PADDING);
    put_section(p, "Examples", text->example);
}

static void
put_backward(page *p, const py_score *score, const attn_score_text *text)
{
    const char *name = score->about->name;
    put(p, "Gradients of `%s_attention`.\n", name);
    put_arguments(p, score, &score->backward);
    put(p, "\nReturns\n-------\n");
    put_gradients(p, score, false);
    put(p, "\n" DOC_RAISES "\nSee Also\n--------\n");
    put(p, "%s_attention : The function these are the gradients of.\n", name);
    put_section(p, "Notes", text->backward_notes);
    put_section(p, "Examples", text->backward_example);
}

static void
put_scores(page *p, const py_score *score, const attn_score_text *text)
{
    put(p, "%s.\n",
        text->scores == NULL ? "The score of every query with every key"
                             : text->scores);
    put_arguments(p, score, &score->scores);
    put(p, "\nReturns\n-------\nscores : ndarray, float32, shape (..., M, N)\n");
    put(p, "    ``%s`` of every pair.\n",
        text->formula == NULL ? "score(q, k)" : text->formula);
    put(p, "\n" DOC_RAISES "\nSee Also\n--------\n");
    put(p,
        "%s_attention : The attention with this score.\n"
        "%s_scores_backward : The gradients of this function.\n"
        "masked_softmax : From scores to attention weights.\n",
        score->about->name, score->about->name);
    put_section(p, "Notes", text->scores_notes);
    put_section(p, "Examples", text->scores_example);
}

static void
put_scores_backward(page *p, const py_score *score, const attn_score_text *text)
{
    const char *name = score->about->name;
    put(p, "Gradients of `%s_scores`.\n", name);
    put_arguments(p, score, &score->scores_backward);
    put(p, "\nReturns\n-------\n");
    put_gradients(p, score, true);
    put(p, "\n" DOC_RAISES "\nSee Also\n--------\n");
    put(p,
        "%s_scores : The function these are the gradients of.\n"
        "masked_softmax_backward : From the gradient of weights to that of scores.\n"
        "\nNotes\n-----\n"
        "What `%s_attention_backward` does after its softmax, in whose notes the\n"
        "formulas are: dS is `grad_output` itself.\n",
        name, name);
    put_section(p, "Examples", text->scores_backward_example);
}

char *
py_score_doc(const attnext_state *state, const py_score *score,
             const py_signature *signature)
{
    static const attn_score_text silent = {0};
    const attn_score_text *said = score->about->text;
    const attn_score_text *text = said == NULL ? &silent : said;
    page p = {0};
    put_signature(&p, state, signature);
    if (signature == &score->forward) {
        put_forward(&p, score, text);
    } else if (signature == &score->backward) {
        put_backward(&p, score, text);
    } else if (signature == &score->scores) {
        put_scores(&p, score, text);
    } else {
        put_scores_backward(&p, score, text);
    }
    return finished(&p);
}

const char *
py_gradients_name(const py_score *score, char name[PY_GRADIENTS_NAME])
{
    int length = 0;
    for (const char *c = score->about->name; *c != '\0'; c++) {
        bool first = length == 0 || c[-1] == '_';
        if (*c != '_') {
            name[length++] = first ? (char)(*c - 'a' + 'A') : *c;
        }
    }
    PyOS_snprintf(name + length, (size_t)(PY_GRADIENTS_NAME - length), "Gradients");
    return name;
}

char *
py_gradients_doc(const py_score *score)
{
    page p = {0};
    put(&p, "Gradients of `%s_attention`, each in the shape of what it belongs to.\n",
        score->about->name);
    put(&p, "\nParameters\n----------\n");
    put(&p,
        "queries : ndarray, float32, shape (..., M, %s)\n"
        "    Gradient with respect to the queries.\n",
        score->own_key_size ? "Dq" : "D");
    put(&p,
        "keys : ndarray, float32, shape (..., N, %s)\n"
        "    Gradient with respect to the keys.\n",
        score->own_key_size ? "Dk" : "D");
    put(&p,
        score->about->has_heads
            ? "values : ndarray, float32, shape (..., N, Dv)\n"
              "    Gradient with respect to the values.\n"
            : "values : ndarray, float32, shape (..., N, Dv), or None\n"
              "    Gradient with respect to the values; None from "
              "`%s_scores_backward`.\n",
        score->about->name);
    for (int i = 0; i < score->parameters; i++) {
        const attn_parameter *parameter = &score->about->parameters[i];
        char words[64];
        put(&p,
            "%s : ndarray, float32, shape %s%s\n"
            "    Gradient with respect to `%s`%s.\n",
            parameter->name, shape_words(parameter->shape, words),
            parameter->optional ? ", or None" : "", parameter->name,
            parameter->optional ? "; None without one" : "");
    }
    return finished(&p);
}

char *
py_parameter_doc(const attn_parameter *parameter)
{
    char words[64];
    page p = {0};
    put(&p, "ndarray%s: %s\nThe live array, of shape %s; setting it copies.",
        parameter->optional ? " or None" : "", parameter->doc,
        shape_words(parameter->shape, words));
    return finished(&p);
}
