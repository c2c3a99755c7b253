/*
 * masked_softmax.c -- softmax over the last axis up to a length or under a mask, and
 * d2l's sequence_mask: the stand-alone functions, row by row. Attention itself never
 * stores a row of scores.
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
    const attn_masks *masks;
    attn_empty_rows empty_rows;
} row_job;

static void
fill(float *to, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = value;
    }
}

/* Who takes part in a row: keys j < n whose byte of the mask, if there is one, is not
 * 0; n = 0 if the row is empty. */
typedef struct {
    int64_t n;
    const uint8_t *mask;
} softmax_keys;

static softmax_keys
keys_of(const row_job *job, int64_t row)
{
    const attn_view *view = &job->masks->mask;
    int64_t b = row / job->M, m = row % job->M;
    softmax_keys keys = {.n = attn_limit(&job->masks->valid, b, m, job->N)};
    if (view->data == NULL) {
        return keys;
    }
    const uint8_t *mask = (const uint8_t *)view->data + attn_view_row(view, b, m);
    if (view->stride_j == 0) {
        keys.n = *mask != 0 ? keys.n : 0;
        return keys;
    }
    while (keys.n > 0 && mask[keys.n - 1] == 0) {
        keys.n--;
    }
    keys.mask = mask;
    return keys;
}

static void
softmax_task(void *ctx, int64_t task, int worker)
{
    const row_job *job = ctx;
    int64_t N = job->N, row = task * job->rows_per_task, end = row + job->rows_per_task;
    (void)worker;
    for (; row < job->rows && row < end; row++) {
        softmax_keys keys = keys_of(job, row);
        float *out = job->out + row * N;
        if (keys.n > 0) {
            attn_simd->softmax_row(out, job->x + row * N, keys.n, keys.mask);
            memset(out + keys.n, 0, (size_t)(N - keys.n) * sizeof(float));
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
        softmax_keys keys = keys_of(job, row);
        float *out = job->out + row * N;
        bool nan_row = keys.n == 0 && job->empty_rows == ATTN_EMPTY_NAN;
        if (keys.n > 0) {
            attn_simd->softmax_row_backward(out, job->y + row * N, job->x + row * N,
                                            keys.n, keys.mask);
        }
        fill(out + keys.n, N - keys.n, nan_row ? NAN : 0.0f);
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
                    const attn_masks *masks, attn_empty_rows empty_rows, attn_run *run)
{
    row_job job = {.out = weights,
                   .x = X,
                   .M = M,
                   .N = N,
                   .masks = masks,
                   .empty_rows = empty_rows};
    return run_rows(&job, B, softmax_task, run);
}

int
attn_masked_softmax_backward(float *dX, const float *dweights, const float *weights,
                             int64_t B, int64_t M, int64_t N, const attn_masks *masks,
                             attn_empty_rows empty_rows, attn_run *run)
{
    row_job job = {.out = dX,
                   .x = weights,
                   .y = dweights,
                   .M = M,
                   .N = N,
                   .masks = masks,
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
