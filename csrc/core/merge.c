/*
 * merge.c -- attentions over disjoint sets of keys, merged into the attention over all
 * of them: the last step of attention whose keys are split over chunks or machines
 * (Rabe & Staats 2021).
 *
 * A part's lse says how much weight its keys have together, so the parts are averaged
 * with w = softmax(lses), row by row.
 */
#include <math.h>
#include <string.h>

#include "../simd/kernels.h"
#include "arena.h"
#include "attn.h"
#include "row.h"
#include "work.h"

enum { TASK_ROWS = 64 };

typedef struct {
    float *w;    /* [parts]  weights of the parts in a row */
    float *dots; /* [parts]  its lses; backward: doutput . output_i */
} merge_scratch;

typedef struct merge_job merge_job;

struct merge_job {
    void (*merge)(const merge_job *, const merge_scratch *, int64_t row);
    float *output, *lse;
    float *doutputs, *dlses; /* (parts, rows, Dv), (parts, rows) */
    const float *doutput, *dlse;
    const float *const *outputs, *const *lses;
    int64_t parts, rows, Dv;
    merge_scratch *scratch; /* one per worker */
};

/* w = softmax of the row's lses; false if every part is empty. */
static bool
weights_of_parts(const merge_job *job, const merge_scratch *s, int64_t row)
{
    bool any = false;
    for (int64_t i = 0; i < job->parts; i++) {
        s->dots[i] = job->lses[i][row];
        any = any || s->dots[i] != -INFINITY;
    }
    if (any) {
        attn_simd->softmax_rows(s->w, s->dots, job->parts, 1, &job->parts, NULL);
    }
    return any;
}

/* log sum_i exp(lse_i). The largest lse has the weight 1 / sum_i exp(lse_i - it). */
static float
merged_lse(const merge_job *job, const merge_scratch *s)
{
    float top = -INFINITY, w_top = 0.0f;
    for (int64_t i = 0; i < job->parts; i++) {
        if (isnan(s->dots[i])) {
            return NAN;
        }
        if (s->dots[i] > top) {
            top = s->dots[i];
            w_top = s->w[i];
        }
    }
    return isinf(top) ? top : attn_log_add(top, 1.0f / w_top);
}

static void
merge_row(const merge_job *job, const merge_scratch *s, int64_t row)
{
    const int64_t Dv = job->Dv;
    float *to = job->output + row * Dv;
    bool any = weights_of_parts(job, s, row);
    memset(to, 0, (size_t)Dv * sizeof(float));
    for (int64_t i = 0; any && i < job->parts; i++) {
        if (job->lses[i][row] != -INFINITY) {
            attn_simd->matmul(to, Dv, s->w + i, 0, 0, job->outputs[i] + row * Dv, Dv, 1,
                              Dv, 1, ATTN_ADD);
        }
    }
    job->lse[row] = any ? merged_lse(job, s) : -INFINITY;
}

/* forward was: w = softmax(lses), output = sum_i w_i output_i, lse = log sum_i
 * exp(lse_i). So now:
 *     doutput_i = w_i doutput,
 *     dlse_i = w_i (output_i . doutput - sum_j w_j output_j . doutput + dlse). */
static void
merge_row_backward(const merge_job *job, const merge_scratch *s, int64_t row)
{
    const int64_t Dv = job->Dv;
    const float *doutput = job->doutput + row * Dv;
    bool any = weights_of_parts(job, s, row);
    float mean = 0.0f;
    for (int64_t i = 0; any && i < job->parts; i++) {
        bool live = job->lses[i][row] != -INFINITY;
        s->dots[i] = live ? attn_simd->dot_row(doutput, job->outputs[i] + row * Dv, Dv)
                          : 0.0f;
        mean += live ? s->w[i] * s->dots[i] : 0.0f;
    }
    for (int64_t i = 0; i < job->parts; i++) {
        bool live = job->lses[i][row] != -INFINITY;
        float *doutput_i = job->doutputs + (i * job->rows + row) * Dv;
        float dlse = job->dlse == NULL ? 0.0f : job->dlse[row];
        for (int64_t d = 0; d < Dv; d++) {
            doutput_i[d] = live ? s->w[i] * doutput[d] : 0.0f;
        }
        job->dlses[i * job->rows + row] = live ? s->w[i] * (s->dots[i] - mean + dlse)
                                               : 0.0f;
    }
}

/* ---- tasks ----------------------------------------------------------------------- */

static void
merge_task(void *ctx, int64_t task, int worker)
{
    const merge_job *job = ctx;
    int64_t row = task * TASK_ROWS, end = row + TASK_ROWS;
    for (; row < job->rows && row < end; row++) {
        job->merge(job, &job->scratch[worker], row);
    }
}

static void
lay_out(merge_job *job, attn_arena *a, int threads)
{
    job->scratch = attn_take(a, sizeof *job->scratch, threads, 1);
    for (int t = 0; t < threads; t++) {
        merge_scratch local, *s = job->scratch == NULL ? &local : &job->scratch[t];
        s->w = attn_take_floats(a, job->parts, 1);
        s->dots = attn_take_floats(a, job->parts, 1);
    }
}

size_t
attn_merge_workspace(int64_t parts, int threads)
{
    merge_job job = {.parts = parts};
    attn_arena a = attn_arena_over(NULL);
    lay_out(&job, &a, threads);
    return attn_arena_size(&a);
}

static int
run_rows(merge_job *job, void *memory, attn_run *run)
{
    attn_arena a = attn_arena_within(memory, run->room);
    lay_out(job, &a, run->threads);
    if (!attn_arena_fits(&a, &run->room)) {
        return ATTN_NO_ROOM;
    }
    double us = attn_us(ATTN_WORK_NUMBER *
                        attn_work(job->rows, job->parts, job->Dv + 16));
    int64_t tasks = attn_ceil_div(job->rows, TASK_ROWS);
    return attn_parallel_for(run, tasks, us, merge_task, job) ? 0 : ATTN_INTERRUPTED;
}

int
attn_merge(float *output, float *lse, const float *const *outputs,
           const float *const *lses, int64_t parts, int64_t rows, int64_t Dv,
           void *memory, attn_run *run)
{
    merge_job job = {.merge = merge_row,
                     .output = output,
                     .lse = lse,
                     .outputs = outputs,
                     .lses = lses,
                     .parts = parts,
                     .rows = rows,
                     .Dv = Dv};
    return run_rows(&job, memory, run);
}

int
attn_merge_backward(float *doutputs, float *dlses, const float *doutput,
                    const float *dlse, const float *const *outputs,
                    const float *const *lses, int64_t parts, int64_t rows, int64_t Dv,
                    void *memory, attn_run *run)
{
    merge_job job = {.merge = merge_row_backward,
                     .doutputs = doutputs,
                     .dlses = dlses,
                     .doutput = doutput,
                     .dlse = dlse,
                     .outputs = outputs,
                     .lses = lses,
                     .parts = parts,
                     .rows = rows,
                     .Dv = Dv};
    return run_rows(&job, memory, run);
}
