/*
 * projection.c -- see projection.h. Y and dX are cut into rows, dW into panels of units
 * by panels of features, so that every element has one owner and sums over all rows in
 * one order.
 */
#include "projection.h"

#include <string.h>

#include "../simd/kernels.h"
#include "work.h"

enum {
    TASK_ROWS = 64,   /* of Y and dX */
    UNITS = 16,       /* columns of a panel of dY */
    SUM = 64,         /* terms in one chain of the sums of dX and dW */
    WAVE_ROWS = 256,  /* rows in panels for dW: two of 16 columns fit in L1 */
    GATHER_ROWS = 16, /* of a wave, to a task */
    TOGETHER = 64,    /* columns of X that meet all of dY before the next ones */
    FEW_ROWS = 16,    /* fewer do not pay for panels of W in dX */
    ROW_UNITS = 64,   /* of Y of one row */
    NEAR = 16,        /* columns: panels no wider stay in L1 */
    ALIASED = 512,    /* floats: rows this far apart, or a multiple, share sets of L1 */
    COPY_ROWS = 12,   /* two register tiles of AVX2 */
    COPY_ROW = ATTN_CHUNK + 16,
};

static int64_t
smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static attn_into
into_sum(bool add)
{
    return add ? ATTN_ADD : ATTN_SET;
}

/* ---- panels ---------------------------------------------------------------------- */

int64_t
attn_in_panels(int64_t columns)
{
    return attn_ceil_div(columns, 16) * 16;
}

attn_panels
attn_take_panels(attn_arena *a, int64_t D, int64_t H)
{
    return (attn_panels){.W = attn_take_floats(a, attn_in_panels(H), D)};
}

/* As large as the rows that there are want them: 256 of ten rows' panels would put the
 * workspace of the book's toy on the heap. */
attn_panels
attn_take_panels_backward(attn_arena *a, int64_t D, int64_t H, int64_t entries,
                          int64_t rows)
{
    bool many = entries >= WAVE_ROWS || rows >= WAVE_ROWS;
    int64_t wave = many ? WAVE_ROWS : smaller(entries * rows, WAVE_ROWS);
    attn_panels panels = attn_take_panels(a, attn_in_panels(D), H);
    panels.rows = wave;
    panels.dY = attn_take_floats(a, wave, attn_in_panels(H));
    panels.X = attn_take_floats(a, wave, attn_in_panels(D));
    return panels;
}

/* to (one row of a panel) = from, with 0 in columns that are not there. */
static inline void
copy_row(float *to, const float *from, int64_t columns, int64_t panel)
{
    if (columns == 16 && panel == 16) { /* a constant: without calls */
        memcpy(to, from, 16 * sizeof(float));
        return;
    }
    memcpy(to, from, (size_t)columns * sizeof(float));
    memset(to + columns, 0, (size_t)(panel - columns) * sizeof(float));
}

/* The panel of n rows of D numbers that begins with column d. */
static void
make_panel(float *panels, attn_span rows, int64_t n, int64_t D, int64_t d)
{
    int64_t columns = smaller(D - d, attn_simd->panel), panel = attn_in_panels(columns);
    for (int64_t i = 0; i < n; i++) {
        copy_row(panels + d * n + i * panel, attn_span_row(rows, i) + d, columns,
                 panel);
    }
}

void
attn_rows_in_panels(float *panels, attn_span rows, int64_t n, int64_t D)
{
    for (int64_t d = 0; d < D; d += attn_simd->panel) {
        make_panel(panels, rows, n, D, d);
    }
}

/* ---- rows by panels -------------------------------------------------------------- */

/* C (n, columns) += the terms t .. t + count - 1 of X (n, K) Y (K, columns), or = them
 * unless add; Y in panels. X begins at its column t. */
static void
multiply_terms(float *C, int64_t ldc, attn_span X, int64_t n, const float *panels,
               int64_t K, int64_t t, int64_t count, int64_t columns, bool add)
{
    for (int64_t j = 0; j < columns; j += attn_simd->panel) {
        int64_t panel = smaller(attn_in_panels(columns) - j, attn_simd->panel);
        attn_simd->matmul(C + j, ldc, X.data, X.ld, 1, panels + j * K + t * panel,
                          panel, n, smaller(columns - j, attn_simd->panel), count,
                          into_sum(add));
    }
}

/* Compute the same as multiply() below, from copies of COPY_ROWS rows at a time.
 *
 * Rows 2 or 4 KiB apart share a set or two of L1, where six of them and a panel evict each
 * other. Copies are COPY_ROW floats apart, so they do not. A copy has as many terms as one
 * sum of matmul() has, so the bits do not change. 2048 rows of 1024 floats by 1024 units,
 * AVX2 on Zen 3: 73 GF/s with copies of 64 rows, 48 to 60 without. Copies of 12 rows are
 * as fast as copies of 64 (AVX2 on Zen 4, by turns) and take 13 KiB of stack instead of
 * 68; they are in a function of their own so that other calls do not take it. A panel of
 * 64 columns is too large for L1 anyway: 4096 rows of 512 by 512, AVX-512 on Cascade Lake,
 * 115 GF/s with copies and 133 without. */
__attribute__((noinline)) static void
multiply_copies(float *C, int64_t ldc, attn_span X, int64_t n, const float *panels,
                int64_t K, int64_t columns, int64_t chain, bool add)
{
    float copy[COPY_ROWS * COPY_ROW];
    const int64_t terms = smaller(chain, ATTN_CHUNK);
    for (int64_t t = 0, count; t < K; t += count) {
        count = smaller(K - t, terms);
        for (int64_t at = 0, rows; at < n; at += rows) {
            rows = smaller(n - at, COPY_ROWS);
            for (int64_t i = 0; i < rows; i++) {
                memcpy(copy + i * COPY_ROW, attn_span_row(X, at + i) + t,
                       (size_t)count * sizeof(float));
            }
            multiply_terms(C + at * ldc, ldc, (attn_span){copy, COPY_ROW}, rows, panels,
                           K, t, count, columns, add || t > 0);
        }
    }
}

/* Set C (n, columns) = X (n, K) Y (K, columns), or add that to C if `add`. Y is in panels.
 * Each sum of `chain` terms is added to C. n is at most TASK_ROWS. */
static void
multiply(float *C, int64_t ldc, attn_span X, int64_t n, const float *panels, int64_t K,
         int64_t columns, int64_t chain, bool add)
{
    if (attn_simd->panel <= NEAR && X.ld % ALIASED == 0 && K > ATTN_CHUNK) {
        multiply_copies(C, ldc, X, n, panels, K, columns, chain, add);
        return;
    }
    int64_t t = 0;
    do { /* at least once: with K = 0 this sets C to 0 */
        int64_t count = smaller(K - t, chain);
        multiply_terms(C, ldc, (attn_span){X.data + t, X.ld}, n, panels, K, t, count,
                       columns, add || t > 0);
        t += count;
    } while (t < K);
}

/* ---- forward --------------------------------------------------------------------- */

void
attn_transpose_in_panels(float *panels, const float *W, int64_t D, int64_t H)
{
    for (int64_t h = 0; h < H; h += attn_simd->panel) {
        attn_simd->pack(panels + h * D,
                        (int)smaller(attn_in_panels(H) - h, attn_simd->panel),
                        W + h * D, D, (int)smaller(H - h, attn_simd->panel), D, 1.0f);
    }
}

void
attn_project(float *Y, int64_t ldy, attn_span X, int64_t n, const float *panels,
             int64_t D, int64_t H, const float *b)
{
    for (int64_t i = 0; b != NULL && i < n; i++) {
        memcpy(Y + i * ldy, b, (size_t)H * sizeof(float));
    }
    multiply(Y, ldy, X, n, panels, D, H, D, b != NULL);
}

typedef struct {
    const attn_projection *y;
    float *Y;
    int64_t ldy;
    const float *b;
} forward;

/* Rows at .. end - 1, all of which take part: those of an entry of X at a time. */
static void
project_run(const forward *f, int64_t at, int64_t end)
{
    const attn_projection *y = f->y;
    const int64_t together = attn_is_even(&y->X, y->X_rows) ? y->rows : y->X_rows;
    for (int64_t n; at < end; at += n) {
        int64_t row = at % together;
        float *Y = f->Y + at * f->ldy;
        n = smaller(together - row, end - at);
        attn_project(Y, f->ldy, attn_read(&y->X, at / together, row), n, y->panels.W,
                     y->D, y->H, f->b);
    }
}

static void
forward_task(void *ctx, int64_t task, int worker)
{
    const forward *f = ctx;
    int64_t at = task * TASK_ROWS, end = smaller(f->y->rows, at + TASK_ROWS);
    (void)worker;
    for (int64_t n; at < end; at += n) {
        bool used;
        n = attn_use_run(f->y->use, at, end, &used);
        if (used) {
            project_run(f, at, at + n);
        }
    }
}

/* One row, as in a decoder's step, does not pay for panels: it is a query, and the rows
 * of W are its keys (kernels_query.h): the same sums, and W is read where it is. 512
 * features and units: 45 us against 75; two rows take longer than with panels. A task is
 * ROW_UNITS of them. */
static void
row_task(void *ctx, int64_t task, int worker)
{
    const forward *f = ctx;
    const attn_projection *y = f->y;
    int64_t h = task * ROW_UNITS, units = smaller(y->H - h, ROW_UNITS);
    (void)worker;
    if (f->b != NULL) {
        memcpy(f->Y + h, f->b + h, (size_t)units * sizeof(float));
    }
    attn_simd->matmul(f->Y + h, 1, y->W + h * y->D, y->D, 1, y->X.data, 1, units, 1,
                      y->D, into_sum(f->b != NULL));
}

bool
attn_projection_forward(const attn_projection *y, float *Y, int64_t ldy, const float *b,
                        attn_run *run)
{
    forward f = {y, Y, ldy, b};
    if (y->rows == 1 && y->use == NULL) {
        return attn_parallel_for(run, attn_ceil_div(y->H, ROW_UNITS),
                                 attn_us(attn_work(1, y->D, y->H)), row_task, &f);
    }
    attn_transpose_in_panels(y->panels.W, y->W, y->D, y->H);
    return attn_parallel_for(run, attn_ceil_div(y->rows, TASK_ROWS),
                             attn_us(attn_work(y->rows, y->D, y->H)), forward_task, &f);
}

/* ---- backward: dX ---------------------------------------------------------------- */

/* Rows that dW takes in at a time. */
typedef struct {
    const float *X[WAVE_ROWS], *dY[WAVE_ROWS];
} wave_rows;

typedef struct {
    const attn_projection *y;
    float *dX, *dW;
    const float *dY;
    int64_t ldy;
    int64_t next;  /* of dW: the first row that no wave has had */
    int64_t count; /* the rows of this one that take part */
    wave_rows *wave;
    bool add;
} backward;

static int64_t
panels_of(int64_t columns)
{
    return attn_ceil_div(columns, attn_simd->panel);
}

/* Panel `task` of W. */
static void
w_task(void *ctx, int64_t task, int worker)
{
    const attn_projection *y = ((const backward *)ctx)->y;
    (void)worker;
    make_panel(y->panels.W, (attn_span){y->W, y->D}, y->H, y->D,
               task * attn_simd->panel);
}

static void
dx_task(void *ctx, int64_t task, int worker)
{
    const backward *s = ctx;
    const attn_projection *y = s->y;
    int64_t at = task * TASK_ROWS, end = smaller(y->rows, at + TASK_ROWS);
    (void)worker;
    for (int64_t n; at < end; at += n) {
        bool used;
        n = attn_use_run(y->use, at, end, &used);
        const attn_span dY = {s->dY + at * s->ldy, s->ldy};
        float *dX = s->dX + at * y->D;
        if (used && y->rows < FEW_ROWS) {
            for (int64_t h = 0; h < y->H || h == 0; h += SUM) {
                attn_simd->matmul(dX, y->D, dY.data + h, dY.ld, 1, y->W + h * y->D,
                                  y->D, n, y->D, smaller(y->H - h, SUM),
                                  into_sum(h > 0));
            }
        } else if (used) {
            multiply(dX, y->D, dY, n, y->panels.W, y->H, y->D, SUM, false);
        }
    }
}

static bool
make_dx(backward *s, attn_run *run)
{
    const attn_projection *y = s->y;
    return attn_parallel_for(run, y->rows < FEW_ROWS ? 0 : panels_of(y->D),
                             attn_us(ATTN_WORK_NUMBER * attn_work(y->H, y->D, 1)),
                             w_task, s) &&
           attn_parallel_for(run, attn_ceil_div(y->rows, TASK_ROWS),
                             attn_us(attn_work(y->rows, y->D, y->H)), dx_task, s);
}

/* ---- backward: dW ---------------------------------------------------------------- */

/* The next rows that take part, whichever entries they belong to: so the sums over
 * them, and their speed, do not depend on how much padding lies between. */
static void
find_rows(backward *s)
{
    const attn_projection *y = s->y;
    s->count = 0;
    for (; s->next < y->rows && s->count < WAVE_ROWS; s->next++) {
        if (y->use == NULL || y->use[s->next] != ATTN_UNUSED) {
            int64_t i = s->count++;
            s->wave->dY[i] = s->dY + s->next * s->ldy;
            s->wave->X[i] =
                attn_read(&y->X, s->next / y->X_rows, s->next % y->X_rows).data;
        }
    }
}

/* Rows at .. end - 1 of those of a wave, in panels of `width` columns of n rows. */
static void
wave_in_panels(float *panels, int64_t n, const float *const *rows, int64_t at,
               int64_t end, int64_t D, int64_t width)
{
    for (int64_t d = 0; d < D; d += width) {
        int64_t columns = smaller(D - d, width), panel = attn_in_panels(columns);
        for (int64_t i = at; i < end; i++) {
            copy_row(panels + d * n + i * panel, rows[i] + d, columns, panel);
        }
    }
}

/* Some rows of dY and of X. All rows of a panel, then those of the next, read a line or
 * four of each row at a time, and rows are KiB apart: (4096, 512) 20 % slower. */
static void
gather_task(void *ctx, int64_t task, int worker)
{
    const backward *s = ctx;
    const attn_projection *y = s->y;
    const int64_t at = task * GATHER_ROWS, end = smaller(s->count, at + GATHER_ROWS);
    (void)worker;
    wave_in_panels(y->panels.dY, y->panels.rows, s->wave->dY, at, end, y->H, UNITS);
    wave_in_panels(y->panels.X, y->panels.rows, s->wave->X, at, end, y->D,
                   attn_simd->panel);
}

/* dW (UNITS, panel) += dY^T (UNITS, rows) X (rows, panel). 64 columns of X meet all of dY
 * before the next ones. 1024 units of 1024 features, AVX-512: where all of X met 16 units
 * before the next ones, a seventh slower; where a panel of AVX2's did with all of dY, too. */
static void
dw_task(void *ctx, int64_t task, int worker)
{
    const backward *s = ctx;
    const attn_projection *y = s->y;
    const int64_t most = attn_ceil_div(TOGETHER, attn_simd->panel),
                  units = attn_ceil_div(y->H, UNITS);
    const int64_t first = task / (units * most) * most, in = task % (units * most);
    const int64_t together = smaller(most, panels_of(y->D) - first);
    int64_t h = in / together * UNITS, d = (first + in % together) * attn_simd->panel;
    int64_t columns = smaller(y->D - d, attn_simd->panel),
            panel = attn_in_panels(columns);
    int64_t i = 0;
    (void)worker;
    do { /* once at least: without rows dW is 0 */
        attn_simd->matmul(s->dW + h * y->D + d, y->D,
                          y->panels.dY + h * y->panels.rows + i * UNITS, 1, UNITS,
                          y->panels.X + d * y->panels.rows + i * panel, panel,
                          smaller(y->H - h, UNITS), columns, smaller(s->count - i, SUM),
                          into_sum(s->add || i > 0));
        i += SUM;
    } while (i < s->count);
}

static bool
make_dw(backward *s, attn_run *run)
{
    const attn_projection *y = s->y;
    const int64_t units = attn_ceil_div(y->H, UNITS), panels = panels_of(y->D);
    do {
        find_rows(s);
        double gather = ATTN_WORK_NUMBER * attn_work(s->count, y->D + y->H, 1);
        if (!attn_parallel_for(run, attn_ceil_div(s->count, GATHER_ROWS),
                               attn_us(gather), gather_task, s) ||
            !attn_parallel_for(run, units * panels,
                               attn_us(attn_work(s->count, y->D, y->H)), dw_task, s)) {
            return false;
        }
        s->add = true;
    } while (s->next < y->rows);
    return true;
}

bool
attn_projection_backward(const attn_projection *y, float *dX, float *dW,
                         const float *dY, int64_t ldy, attn_run *run)
{
    wave_rows wave; /* 4 KiB that need not be cleared */
    backward s = {.y = y, .dX = dX, .dW = dW, .dY = dY, .ldy = ldy, .wave = &wave};
    return make_dx(&s, run) && make_dw(&s, run);
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
    int64_t h = task * UNITS, units = s->width - h < UNITS ? s->width - h : UNITS;
    double sum[UNITS] = {0};
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
    return attn_parallel_for(run, attn_ceil_div(width, UNITS), us, sum_task, &s);
}
