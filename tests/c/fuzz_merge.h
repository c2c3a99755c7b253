/*
 * fuzz_merge.h -- random attentions over parts of the keys, merged, and what must hold.
 */
#ifndef FUZZ_MERGE_H
#define FUZZ_MERGE_H

#include <stdio.h>

#include "fuzz_results.h"

enum { MOST_PARTS = 5 };

/* What merge is given, and what it returns. */
typedef struct {
    int64_t parts, rows, Dv;
    const float *outputs[MOST_PARTS], *lses[MOST_PARTS];
    const float *doutput, *dlse;
    int threads;
    bool tame;
    double magnitude; /* of all numbers, if tame */
} merge_problem;

typedef struct {
    float *output, *lse;
    float *doutputs[MOST_PARTS], *dlses[MOST_PARTS];
} merge_results;

static bool
has_weight(const merge_problem *c, int64_t part, int64_t row)
{
    return c->lses[part][row] != -INFINITY;
}

static bool
any_has_weight(const merge_problem *c, int64_t row)
{
    for (int64_t i = 0; i < c->parts; i++) {
        if (has_weight(c, i, row)) {
            return true;
        }
    }
    return false;
}

/* One lse in four is -inf; the outputs there, and gradients of rows without any other,
 * are NaN. */
static merge_problem
choose_merge(source *s)
{
    merge_problem c = {.threads = 1 + (int)(next_byte(s) % 3),
                       .tame = !s->nasty,
                       .magnitude = (double)s->magnitude};
    c.parts = next_byte(s) % (MOST_PARTS + 1);
    c.rows = size(s, 130);
    c.Dv = size(s, 33);
    for (int64_t i = 0; i < c.parts; i++) {
        float *outputs = random_floats(s, c.rows * c.Dv);
        float *lses = random_floats(s, c.rows);
        for (int64_t row = 0; row < c.rows; row++) {
            if (next_random(s) % 4 == 0) {
                lses[row] = -INFINITY;
            }
            poison_row(lses[row] == -INFINITY ? outputs : NULL, row, c.Dv);
        }
        c.outputs[i] = outputs;
        c.lses[i] = lses;
    }
    float *doutput = random_floats(s, c.rows * c.Dv);
    float *dlse = next_byte(s) % 2 ? random_floats(s, c.rows) : NULL;
    for (int64_t row = 0; row < c.rows; row++) {
        if (!any_has_weight(&c, row)) {
            poison_row(doutput, row, c.Dv);
            poison_row(dlse, row, 1);
        }
    }
    c.doutput = doutput;
    c.dlse = dlse;
    return c;
}

static merge_results
merge(const merge_problem *c, int threads)
{
    merge_results r = {.output = nan_floats(c->rows * c->Dv),
                       .lse = nan_floats(c->rows)};
    float *doutputs = nan_floats(c->parts * c->rows * c->Dv);
    float *dlses = nan_floats(c->parts * c->rows);
    for (int64_t i = 0; i < c->parts; i++) {
        r.doutputs[i] = doutputs + i * c->rows * c->Dv;
        r.dlses[i] = dlses + i * c->rows;
    }
    attn_run run = {.threads = threads};
    void *work = workspace(attn_merge_workspace(c->parts, threads));
    attn_merge(r.output, r.lse, c->outputs, c->lses, c->parts, c->rows, c->Dv, work,
               &run);
    run = (attn_run){.threads = threads};
    work = workspace(attn_merge_workspace(c->parts, threads));
    attn_merge_backward(doutputs, dlses, c->doutput, c->dlse, c->outputs, c->lses,
                        c->parts, c->rows, c->Dv, work, &run);
    return r;
}

static void
check_merge(bool holds, const merge_problem *c, const char *set, const char *what)
{
    if (!holds) {
        fprintf(stderr,
                "%s: merge: %s\n%d parts, %d rows, Dv %d, threads %d, dlse %d\n", set,
                what, (int)c->parts, (int)c->rows, (int)c->Dv, c->threads,
                c->dlse != NULL);
        abort();
    }
}

static bool
same_merge(const merge_problem *c, const merge_results *a, const merge_results *b)
{
    bool same = same_bits(a->output, b->output, c->rows * c->Dv) &&
                same_bits(a->lse, b->lse, c->rows);
    for (int64_t i = 0; i < c->parts; i++) {
        same = same && same_bits(a->doutputs[i], b->doutputs[i], c->rows * c->Dv) &&
               same_bits(a->dlses[i], b->dlses[i], c->rows);
    }
    return same;
}

static bool
near(double a, double b, double size)
{
    return fabs(a - b) <= 1e-5 * (1.0 + size);
}

/* The row against the definition, in double precision; the weights of the parts sum to
 * 1, so that the gradients of the parts sum to those that came in. */
static void
check_merged_row(const merge_problem *c, const merge_results *r, const char *set,
                 int64_t row)
{
    double top = -INFINITY, sum = 0.0, dlse_sum = 0.0;
    for (int64_t i = 0; i < c->parts; i++) {
        top = fmax(top, (double)c->lses[i][row]);
    }
    for (int64_t i = 0; i < c->parts; i++) {
        sum += has_weight(c, i, row) ? exp((double)c->lses[i][row] - top) : 0.0;
        dlse_sum += (double)r->dlses[i][row];
    }
    check_merge(near((double)r->lse[row], top + log(sum), fabs(top)), c, set, "lse");
    double dlse = c->dlse == NULL ? 0.0 : (double)c->dlse[row];
    double dots = c->magnitude * c->magnitude * (double)c->Dv;
    check_merge(near(dlse_sum, dlse, dots), c, set, "sum of dlses");
    for (int64_t d = row * c->Dv; d < (row + 1) * c->Dv; d++) {
        double output = 0.0, size = 0.0, doutput_sum = 0.0;
        for (int64_t i = 0; i < c->parts; i++) {
            if (has_weight(c, i, row)) {
                double w = exp((double)c->lses[i][row] - top) / sum;
                output += w * (double)c->outputs[i][d];
                size = fmax(size, fabs((double)c->outputs[i][d]));
            }
            doutput_sum += (double)r->doutputs[i][d];
        }
        double doutput = (double)c->doutput[d];
        check_merge(near((double)r->output[d], output, size), c, set, "output");
        check_merge(near(doutput_sum, doutput, fabs(doutput)), c, set,
                    "sum of doutputs");
    }
}

/* Parts without weight get no gradient; without any, output is 0 and lse -inf. */
static void
check_weightless(const merge_problem *c, const merge_results *r, const char *set,
                 int64_t row)
{
    bool any = any_has_weight(c, row);
    check_merge(any || r->lse[row] == -INFINITY, c, set, "lse of an empty row");
    for (int64_t d = row * c->Dv; d < (row + 1) * c->Dv; d++) {
        check_merge(any || r->output[d] == 0.0f, c, set, "output of an empty row");
        for (int64_t i = 0; i < c->parts; i++) {
            check_merge(has_weight(c, i, row) || r->doutputs[i][d] == 0.0f, c, set,
                        "gradient of a part without weight");
        }
    }
    for (int64_t i = 0; i < c->parts; i++) {
        check_merge(has_weight(c, i, row) || r->dlses[i][row] == 0.0f, c, set,
                    "gradient of an lse of -inf");
    }
}

/* `specified`: what the scalar kernels give, NULL if they are at it. */
static merge_results
merge_and_check(const merge_problem *c, const char *set, const merge_results *specified)
{
    const merge_results r = merge(c, c->threads), alone = merge(c, 1);
    check_merge(same_merge(c, &r, &alone), c, set, "depends on the threads");
    check_merge(specified == NULL || same_merge(c, specified, &r), c, set,
                "not the bits of scalar");
    for (int64_t row = 0; row < c->rows; row++) {
        check_weightless(c, &r, set, row);
        if (c->tame && any_has_weight(c, row)) {
            check_merged_row(c, &r, set, row);
        }
    }
    return r;
}

#endif
