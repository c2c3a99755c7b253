/*
 * kv_cache.c -- see kv_cache.h.
 */
#include "kv_cache.h"

#include <string.h>

/* ---- rows with room -------------------------------------------------------------- */

/* Where row j of entry e begins, in bytes. */
static size_t
row_at(int64_t rows, int64_t e, int64_t j, size_t size)
{
    return (size_t)(e * rows + j) * size;
}

void
attn_put_rows(attn_rows_kept to, int64_t at, int64_t n, attn_rows_kept from,
              int64_t entries, size_t size)
{
    if (n == 0 || size == 0) { /* however many entries there are */
        return;
    }
    for (int64_t e = 0; e < entries; e++) {
        char *row = (char *)to.data + row_at(to.rows, e, at, size);
        if (from.data == NULL) {
            memset(row, 1, (size_t)n * size);
        } else {
            memcpy(row, (const char *)from.data + row_at(from.rows, e, 0, size),
                   (size_t)n * size);
        }
    }
}

/* ---- what flows to them ---------------------------------------------------------- */

/* to += from; afresh: what `to` holds counts as 0. */
static void
add_row(float *to, const float *from, int64_t width, bool afresh)
{
    for (int64_t d = 0; d < width; d++) {
        to[d] = (afresh ? 0.0f : to[d]) + from[d];
    }
}

typedef struct {
    const attn_key_sums *to, *from;
    int64_t key_width, value_width;
} addition;

/* A key is used if it is in either. */
static void
entry_task(void *ctx, int64_t e, int worker)
{
    const addition *a = ctx;
    const attn_key_sums *to = a->to, *from = a->from;
    const int64_t D = a->key_width, Dv = a->value_width;
    (void)worker;
    for (int64_t j = 0; j < from->rows; j++) {
        const int64_t i = e * from->rows + j, k = e * to->rows + j;
        if (from->key_use[i] != ATTN_UNUSED) {
            add_row(to->projected + k * D, from->projected + i * D, D,
                    to->key_use[k] == ATTN_UNUSED);
        }
        add_row(to->values + k * Dv, from->values + i * Dv, Dv, false);
        to->key_use[k] &= from->key_use[i];
    }
}

/* What it takes to add a number to another in memory, which is what there is to wait for. */
static const double ADDITION_US = 0.6e-3;

void
attn_add_key_sums(const attn_key_sums *to, const attn_key_sums *from, int64_t entries,
                  int64_t key_width, int64_t value_width, int threads)
{
    addition context = {to, from, key_width, value_width};
    attn_run run = {.threads = threads};
    const double numbers = (double)entries * (double)from->rows *
                           ((double)key_width + (double)value_width);
    attn_parallel_for(&run, from->rows == 0 ? 0 : entries, ADDITION_US * numbers,
                      entry_task, &context);
}

void
attn_zero_unused(float *projected, const uint8_t *key_use, int64_t n, int64_t width)
{
    for (int64_t i = 0; i < n; i++) {
        if (key_use[i] == ATTN_UNUSED) {
            memset(projected + i * width, 0, (size_t)width * sizeof(float));
        }
    }
}
