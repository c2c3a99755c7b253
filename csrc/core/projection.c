/*
 * projection.c -- see projection.h. dX is cut into rows, dW into hidden units, so that
 * every element has one owner and sums over all rows in one order.
 */
#include "projection.h"

#include <string.h>

#include "../simd/kernels.h"
#include "work.h"

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
        bool used;
        n = attn_use_run(y->use + at, end - at, &used);
        if (used) {
            attn_simd->matmul(y->dX + at * y->D, y->D, y->dY + at * y->ldy, y->ldy, 1,
                              y->W, y->D, n, y->D, y->H, false);
        }
    }
}

/* dW (units from h on, D) += dY^T (units, n) X (n, D), rows at .. at + n - 1; n <=
 * TASK_ROWS. Rows of several entries are brought together first, some columns at a
 * time, or the order of sums would depend on where they lie. */
static void
add_rows(const attn_projection *y, int64_t h, int64_t units, int64_t at, int64_t n)
{
    enum { COLUMNS = 64 };
    const int64_t D = y->D, rows = y->X_rows;
    const float *dY = y->dY + at * y->ldy + h;
    float *dW_h = y->dW + h * D, together[TASK_ROWS * COLUMNS];
    if (at % rows + n <= rows || attn_is_even(&y->X, rows)) {
        attn_span X = attn_read(&y->X, at / rows, at % rows);
        attn_simd->matmul(dW_h, D, dY, 1, y->ldy, X.data, X.ld, units, D, n, true);
        return;
    }
    for (int64_t d = 0; d < D; d += COLUMNS) {
        int64_t columns = D - d < COLUMNS ? D - d : COLUMNS;
        for (int64_t i = 0; i < n; i++) {
            attn_span X = attn_read(&y->X, (at + i) / rows, (at + i) % rows);
            memcpy(together + i * COLUMNS, X.data + d, (size_t)columns * sizeof(float));
        }
        attn_simd->matmul(dW_h + d, D, dY, 1, y->ldy, together, COLUMNS, units, columns,
                          n, true);
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
            bool used;
            n = attn_use_run(y->use + at, left, &used);
            if (used) {
                add_rows(y, h, units, at, n);
            }
        }
    }
}

bool
attn_projection_backward(const attn_projection *y, attn_run *run)
{
    void *ctx = (void *)y;
    double us = attn_us(attn_work(y->B * y->rows, y->D, y->H));
    int64_t dx_tasks = attn_ceil_div(y->B * y->rows, TASK_ROWS);
    return attn_parallel_for(run, dx_tasks, us, dx_task, ctx) &&
           attn_parallel_for(run, attn_ceil_div(y->H, TASK_UNITS), us, dw_task, ctx);
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
    double us = attn_us(ATTN_WORK_NUMBER * attn_work(count, width, 1));
    return attn_parallel_for(run, attn_ceil_div(width, TASK_UNITS), us, sum_task, &s);
}
