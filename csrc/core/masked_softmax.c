/*
 * masked_softmax.c -- softmax over the last axis up to a length, and d2l's
 * sequence_mask: the stand-alone functions, row by row. Attention itself never stores a
 * row of scores.
 */
#include <math.h>
#include <string.h>

#include "attn.h"
#include "mask.h"

/* Rows of (B, M, N) arrays, cut into tasks of about 64 KiB. */
typedef struct {
    float *out;
    const float *x, *y; /* X; or the weights and their gradient */
    int64_t M, N, rows, rows_per_task;
    const attn_valid_lens *valid;
    attn_empty_rows empty_rows;
} row_job;

static void
fill(float *to, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = value;
    }
}

static void
softmax_task(void *ctx, int64_t task, int worker)
{
    const row_job *job = ctx;
    int64_t N = job->N, row = task * job->rows_per_task, end = row + job->rows_per_task;
    (void)worker;
    for (; row < job->rows && row < end; row++) {
        int64_t n = attn_limit(job->valid, row / job->M, row % job->M, N);
        float *out = job->out + row * N;
        if (n > 0) {
            attn_simd->softmax_row(out, job->x + row * N, n);
            memset(out + n, 0, (size_t)(N - n) * sizeof(float));
        } else {
            float each = job->empty_rows == ATTN_EMPTY_UNIFORM ? 1.0f / (float)N
                         : job->empty_rows == ATTN_EMPTY_NAN   ? NAN
                                                               : 0.0f;
            fill(out, N, each);
        }
    }
}

/* forward was: w = softmax(x).  So now: dx = w * (dw - sum_j w_j dw_j). */
static void
softmax_backward_task(void *ctx, int64_t task, int worker)
{
    const row_job *job = ctx;
    int64_t N = job->N, row = task * job->rows_per_task, end = row + job->rows_per_task;
    (void)worker;
    for (; row < job->rows && row < end; row++) {
        int64_t n = attn_limit(job->valid, row / job->M, row % job->M, N);
        float *out = job->out + row * N;
        if (n > 0) {
            attn_simd->softmax_row_backward(out, job->y + row * N, job->x + row * N, n);
        }
        fill(out + n, N - n, n == 0 && job->empty_rows == ATTN_EMPTY_NAN ? NAN : 0.0f);
    }
}

static int
run_rows(row_job *job, int64_t B, attn_task *task, attn_run *run)
{
    if (B == 0 || job->M == 0 || job->N == 0) {
        return 0;
    }
    job->rows = B * job->M;
    job->rows_per_task = job->N >= 16384 ? 1 : 16384 / job->N;
    int64_t tasks = (job->rows + job->rows_per_task - 1) / job->rows_per_task;
    double us = (double)job->rows * (double)job->N / 2e3;
    return attn_parallel_for(run, tasks, us, task, job) ? 0 : ATTN_INTERRUPTED;
}

int
attn_masked_softmax(float *weights, const float *X, int64_t B, int64_t M, int64_t N,
                    const attn_valid_lens *valid, attn_empty_rows empty_rows,
                    attn_run *run)
{
    row_job job = {.out = weights,
                   .x = X,
                   .M = M,
                   .N = N,
                   .valid = valid,
                   .empty_rows = empty_rows};
    return run_rows(&job, B, softmax_task, run);
}

int
attn_masked_softmax_backward(float *dX, const float *dweights, const float *weights,
                             int64_t B, int64_t M, int64_t N,
                             const attn_valid_lens *valid, attn_empty_rows empty_rows,
                             attn_run *run)
{
    row_job job = {.out = dX,
                   .x = weights,
                   .y = dweights,
                   .M = M,
                   .N = N,
                   .valid = valid,
                   .empty_rows = empty_rows};
    return run_rows(&job, B, softmax_backward_task, run);
}

/* ---- sequence_mask --------------------------------------------------------------- */

typedef struct {
    float *out;
    const float *X;
    const int64_t *lens;
    float value;
    int64_t T, inner;
} sequence_job;

static void
sequence_task(void *ctx, int64_t b, int worker)
{
    const sequence_job *job = ctx;
    int64_t valid = job->lens[b] * job->inner, all = job->T * job->inner;
    float *out = job->out + b * all;
    (void)worker;
    memcpy(out, job->X + b * all, (size_t)valid * sizeof(float));
    fill(out + valid, all - valid, job->value);
}

int
attn_sequence_mask(float *out, const float *X, const int64_t *lens, float value,
                   int64_t B, int64_t T, int64_t inner, attn_run *run)
{
    sequence_job job = {out, X, lens, value, T, inner};
    if (T == 0 || inner == 0) {
        return 0;
    }
    double us = (double)B * (double)T * (double)inner / 2e3;
    return attn_parallel_for(run, B, us, sequence_task, &job) ? 0 : ATTN_INTERRUPTED;
}
