/*
 * masked_softmax.c -- softmax over the last axis up to a length or under a mask, and
 * d2l's sequence_mask: the stand-alone functions, row by row. Attention itself never
 * stores a row of scores.
 */
#include <math.h>
#include <string.h>

#include "attn.h"
#include "mask.h"
#include "work.h"

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

/* ---- who takes part -------------------------------------------------------------- */

enum { BLOCK = 64 }; /* most rows that go to the kernels at once */

/* The rows of a block: keys j < n[i] whose byte of mask[i], if there are masks, is not
 * 0; n[i] = 0 if row i is empty. */
typedef struct {
    int64_t n[BLOCK];
    const uint8_t *mask[BLOCK];
    const uint8_t *const *masks; /* mask, or NULL: every key below n[i] */
    bool some_empty;
} block_keys;

/* n without the zeros that the first n bytes end with. They come in long runs: padding,
 * and what is left of a causal mask. */
static int64_t
without_end(const uint8_t *mask, int64_t n)
{
    uint64_t eight = 0;
    for (; n >= 8; n -= 8) {
        memcpy(&eight, mask + n - 8, sizeof eight);
        if (eight != 0) {
            break;
        }
    }
    while (n > 0 && mask[n - 1] == 0) {
        n--;
    }
    return n;
}

/* Rows `row` to `row + count - 1`, one batch entry after the other. */
static void
find_keys(block_keys *keys, const row_job *job, int64_t row, int count)
{
    const attn_valid_lens *valid = &job->masks->valid;
    const attn_view *view = &job->masks->mask;
    int64_t b = row / job->M, m = row % job->M;
    keys->masks = view->data != NULL && view->stride_j != 0 ? keys->mask : NULL;
    keys->some_empty = false;
    for (int i = 0; i < count; b++, m = 0) {
        const int64_t *lens = valid->lens;
        const uint8_t *mask = view->data;
        if (lens != NULL) {
            lens += b / valid->heads * valid->stride_b;
        }
        if (mask != NULL) {
            mask += attn_view_row(view, b, 0);
        }
        for (; i < count && m < job->M; i++, m++) {
            int64_t n = lens == NULL ? job->N : lens[m * valid->stride_m];
            if (mask != NULL) {
                keys->mask[i] = mask + m * view->stride_m;
                n = view->stride_j != 0   ? without_end(keys->mask[i], n)
                    : *keys->mask[i] != 0 ? n
                                          : 0;
            }
            keys->n[i] = n;
            keys->some_empty = keys->some_empty || n == 0;
        }
    }
}

/* ---- softmax --------------------------------------------------------------------- */

/* Gives the empty rows of a block `value` throughout. */
static void
fill_empty(const block_keys *keys, float *out, int64_t N, int count, float value)
{
    for (int i = 0; keys->some_empty && i < count; i++) {
        if (keys->n[i] == 0) {
            fill(out + i * N, N, value);
        }
    }
}

/* The rows of a task in blocks: for (row_block k = first_block(job, task); k.count > 0;
 * next_block(&k)). */
typedef struct {
    int64_t row, end;
    int count;
} row_block;

static void
next_block(row_block *k)
{
    k->row += k->count;
    k->count = (int)(k->end - k->row < BLOCK ? k->end - k->row : BLOCK);
}

static row_block
first_block(const row_job *job, int64_t task)
{
    row_block k = {.row = task * job->rows_per_task};
    int64_t left = job->rows - k.row;
    k.end = k.row + (left < job->rows_per_task ? left : job->rows_per_task);
    next_block(&k);
    return k;
}

static void
softmax_task(void *ctx, int64_t task, int worker)
{
    const row_job *job = ctx;
    const int64_t N = job->N;
    float empty = job->empty_rows == ATTN_EMPTY_UNIFORM ? 1.0f / (float)N
                  : job->empty_rows == ATTN_EMPTY_NAN   ? NAN
                                                        : 0.0f;
    block_keys keys;
    (void)worker;
    for (row_block k = first_block(job, task); k.count > 0; next_block(&k)) {
        int64_t at = k.row * N;
        find_keys(&keys, job, k.row, k.count);
        attn_simd->softmax_rows(job->out + at, job->x + at, N, k.count, keys.n,
                                keys.masks);
        fill_empty(&keys, job->out + at, N, k.count, empty);
    }
}

/* forward was: w = softmax(x).  So now: dx = w * (dw - sum_j w_j dw_j). */
static void
softmax_backward_task(void *ctx, int64_t task, int worker)
{
    const row_job *job = ctx;
    const int64_t N = job->N;
    float empty = job->empty_rows == ATTN_EMPTY_NAN ? NAN : 0.0f;
    block_keys keys;
    (void)worker;
    for (row_block k = first_block(job, task); k.count > 0; next_block(&k)) {
        int64_t at = k.row * N;
        find_keys(&keys, job, k.row, k.count);
        attn_simd->softmax_rows_backward(job->out + at, job->y + at, job->x + at, N,
                                         k.count, keys.n, keys.masks);
        fill_empty(&keys, job->out + at, N, k.count, empty);
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
    if (job->rows_per_task > BLOCK) {
        job->rows_per_task -= job->rows_per_task % BLOCK;
    }
    int64_t tasks = attn_ceil_div(job->rows, job->rows_per_task);
    double us = attn_us(ATTN_WORK_NUMBER * attn_work(job->rows, job->N + 10, 1));
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
    const attn_valid_lens *lens;
    float value;
    int64_t T, inner;
} sequence_job;

static void
sequence_task(void *ctx, int64_t b, int worker)
{
    const sequence_job *job = ctx;
    const int64_t valid = attn_limit(job->lens, 0, b, job->T) * job->inner;
    const int64_t all = job->T * job->inner;
    float *out = job->out + b * all;
    (void)worker;
    memcpy(out, job->X + b * all, (size_t)valid * sizeof(float));
    fill(out + valid, all - valid, job->value);
}

int
attn_sequence_mask(float *out, const float *X, const attn_valid_lens *lens, float value,
                   int64_t B, int64_t T, int64_t inner, attn_run *run)
{
    sequence_job job = {out, X, lens, value, T, inner};
    if (T == 0 || inner == 0) {
        return 0;
    }
    double us = attn_us(ATTN_WORK_NUMBER * attn_work(B, T, inner));
    return attn_parallel_for(run, B, us, sequence_task, &job) ? 0 : ATTN_INTERRUPTED;
}
