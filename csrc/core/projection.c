/*
 * projection.c -- see projection.h. dX is cut into rows, dW into hidden units, so that
 * every element has one owner and sums over all rows in one order.
 */
#include "projection.h"

#include <string.h>

#include "../simd/kernels.h"

enum {
    TASK_ROWS = 64,  /* of dX; and rows of X that dW takes in at a time, so that they
                      * stay in L1: 143 against 129 GF/s for 256 rows of 128 floats */
    TASK_UNITS = 16, /* of dW: the tasks read all of X, so not too few at a time */
};

/* A task is TASK_ROWS rows, whichever entries they belong to. */
static void
dx_task(void *ctx, int64_t task, int worker)
{
    const attn_projection *y = ctx;
    int64_t all = y->B * y->rows, at = task * TASK_ROWS;
    int64_t end = at + TASK_ROWS < all ? at + TASK_ROWS : all;
    (void)worker;
    for (int64_t n; at < end; at += n) {
        int64_t used = attn_used_run(y->use + at, end - at);
        n = used > 0 ? used : -used;
        if (used > 0) {
            attn_simd->matmul(y->dX + at * y->D, y->D, y->dY + at * y->ldy, y->ldy, 1,
                              y->W, y->D, n, y->D, y->H, false);
        } else {
            memset(y->dX + at * y->D, 0, (size_t)(n * y->D) * sizeof(float));
        }
    }
}

static void
dw_task(void *ctx, int64_t task, int worker)
{
    const attn_projection *y = ctx;
    int64_t h = task * TASK_UNITS,
            units = y->H - h < TASK_UNITS ? y->H - h : TASK_UNITS;
    float *dW_h = y->dW + h * y->D;
    (void)worker;
    memset(dW_h, 0, (size_t)(units * y->D) * sizeof(float));
    for (int64_t b = 0; b < y->B; b++) {
        for (int64_t row = 0, n; row < y->rows; row += n) {
            int64_t at = b * y->rows + row;
            int64_t left = y->rows - row < TASK_ROWS ? y->rows - row : TASK_ROWS;
            int64_t used = attn_used_run(y->use + at, left);
            n = used > 0 ? used : -used;
            if (used > 0) {
                attn_simd->matmul(dW_h, y->D, y->dY + at * y->ldy + h, 1, y->ldy,
                                  y->X + at * y->D, y->D, units, y->D, used, true);
            }
        }
    }
}

bool
attn_projection_backward(const attn_projection *y, attn_run *run)
{
    void *ctx = (void *)y;
    double us = (double)y->B * (double)y->rows * (double)y->D * (double)y->H / 30e3;
    int64_t dx_tasks = (y->B * y->rows + TASK_ROWS - 1) / TASK_ROWS;
    return attn_parallel_for(run, dx_tasks, us, dx_task, ctx) &&
           attn_parallel_for(run, (y->H + TASK_UNITS - 1) / TASK_UNITS, us, dw_task,
                             ctx);
}

/* ---- sums of rows ---------------------------------------------------------------- */

typedef struct {
    float *to;
    const float *rows;
    int64_t count, width;
} row_sum;

static void
sum_task(void *ctx, int64_t task, int worker)
{
    const row_sum *s = ctx;
    int64_t h = task * TASK_UNITS,
            units = s->width - h < TASK_UNITS ? s->width - h : TASK_UNITS;
    double sum[TASK_UNITS] = {0};
    (void)worker;
    for (int64_t i = 0; i < s->count; i++) {
        for (int64_t u = 0; u < units; u++) {
            sum[u] += (double)s->rows[i * s->width + h + u];
        }
    }
    for (int64_t u = 0; u < units; u++) {
        s->to[h + u] = (float)sum[u];
    }
}

bool
attn_sum_rows(float *to, const float *rows, int64_t count, int64_t width, attn_run *run)
{
    row_sum s = {to, rows, count, width};
    double us = (double)count * (double)width / 2e3;
    return attn_parallel_for(run, (width + TASK_UNITS - 1) / TASK_UNITS, us, sum_task,
                             &s);
}
