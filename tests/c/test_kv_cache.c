/*
 * test_kv_cache.c -- rows with room, and sums of what flows to them, beside the plainest
 * loops that mean the same. Every buffer is as large as it has to be, and not larger.
 *
 *     cc -std=c11 -pthread tests/c/test_kv_cache.c csrc/core/kv_cache.c csrc/os/(all).c
 */
#undef NDEBUG /* the checks are asserts */

#include "../../csrc/core/kv_cache.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMES = 2000, OLD = 77 };

static uint32_t state = 1;

/* 0 .. n - 1 */
static int64_t
below(int64_t n)
{
    state = state * 1664525u + 1013904223u;
    return (int64_t)(state >> 8) % n;
}

static void *
allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    assert(memory != NULL || bytes == 0);
    return memory;
}

static uint8_t *
bytes_of(int64_t n, int value)
{
    uint8_t *bytes = allocate((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        bytes[i] = value >= 0 ? (uint8_t)value : (uint8_t)below(256);
    }
    return bytes;
}

/* ---- rows with room -------------------------------------------------------------- */

static void
check_rows(void)
{
    const int64_t entries = below(4), size = below(9), n = below(5);
    const int64_t at = below(6), room = at + n + below(3), rows = n + below(3);
    const bool is_new = below(4) == 0;
    uint8_t *to = bytes_of(entries * room * size, OLD);
    uint8_t *from = bytes_of(entries * rows * size, -1);
    const attn_rows_kept source = {is_new ? NULL : from, is_new ? 0 : rows};
    attn_put_rows((attn_rows_kept){to, room}, at, n, source, entries, (size_t)size);
    for (int64_t i = 0; i < entries * room * size; i++) {
        const int64_t e = i / size / room, j = i / size % room - at, byte = i % size;
        const int expected = j < 0 || j >= n ? OLD
                             : is_new        ? 1
                                             : from[(e * rows + j) * size + byte];
        assert(to[i] == expected);
    }
    free(to);
    free(from);
}

/* Without a row or a byte nothing is walked through, however many entries there are. */
static void
check_no_rows(void)
{
    const attn_rows_kept none = {NULL, 0};
    attn_put_rows(none, 0, 0, none, INT64_MAX, 4);
    attn_put_rows((attn_rows_kept){NULL, INT64_MAX}, 0, INT64_MAX, none, INT64_MAX, 0);
}

/* ---- sums ------------------------------------------------------------------------ */

static float *
numbers(int64_t n)
{
    float *x = allocate((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(below(2001) - 1000) * 0.37f;
    }
    return x;
}

/* What means nothing is NaN. */
static attn_key_sums
random_sums(int64_t entries, int64_t rows, int64_t D, int64_t Dv)
{
    attn_key_sums sums = {rows, numbers(entries * rows * D),
                          numbers(entries * rows * Dv), bytes_of(entries * rows, 0)};
    for (int64_t i = 0; i < entries * rows; i++) {
        sums.key_use[i] = below(3) == 0 ? ATTN_UNUSED : (uint8_t)below(2);
        for (int64_t d = 0; sums.key_use[i] == ATTN_UNUSED && d < D; d++) {
            sums.projected[i * D + d] = NAN;
        }
    }
    return sums;
}

static void
free_sums(attn_key_sums *sums)
{
    free(sums->projected);
    free(sums->values);
    free(sums->key_use);
}

static void *
copy_of(const void *from, int64_t n, size_t size)
{
    void *copy = allocate((size_t)n * size);
    if (n > 0) {
        memcpy(copy, from, (size_t)n * size);
    }
    return copy;
}

/* What `from`, if it has the row, adds to one number of `to`. */
static float
sum_of(float to, bool to_counts, const float *from, bool from_counts)
{
    return !from_counts ? to : to_counts ? to + *from : *from;
}

static void
check_sums(int64_t entries, int64_t most, int64_t D, int64_t Dv, int threads)
{
    const int64_t rows = below(most), longer = rows + below(3), keys = entries * longer;
    attn_key_sums to = random_sums(entries, longer, D, Dv);
    attn_key_sums from = random_sums(entries, rows, D, Dv);
    const attn_key_sums was = {longer, copy_of(to.projected, keys * D, sizeof(float)),
                               copy_of(to.values, keys * Dv, sizeof(float)),
                               copy_of(to.key_use, keys, 1)};
    attn_add_key_sums(&to, &from, entries, D, Dv, threads);
    for (int64_t k = 0; k < keys; k++) {
        const int64_t j = k % longer, i = k / longer * rows + j;
        const bool added = j < rows, used = added && from.key_use[i] != ATTN_UNUSED;
        const bool was_used = was.key_use[k] != ATTN_UNUSED;
        assert(to.key_use[k] ==
               (added ? was.key_use[k] & from.key_use[i] : was.key_use[k]));
        for (int64_t d = 0; d < D; d++) {
            const float x = sum_of(was.projected[k * D + d], was_used,
                                   from.projected + i * D + d, used);
            assert(was_used || used ? to.projected[k * D + d] == x : isnan(x));
        }
        for (int64_t d = 0; d < Dv; d++) {
            const float x = sum_of(was.values[k * Dv + d], true,
                                   from.values + i * Dv + d, added);
            assert(to.values[k * Dv + d] == x);
        }
    }
    attn_zero_unused(to.projected, to.key_use, keys, D);
    for (int64_t i = 0; i < keys * D; i++) {
        assert(to.key_use[i / D] == ATTN_UNUSED ? to.projected[i] == 0.0f
                                                : !isnan(to.projected[i]));
    }
    attn_key_sums all[] = {to, from, was};
    for (int i = 0; i < 3; i++) {
        free_sums(&all[i]);
    }
}

int
main(void)
{
    for (int i = 0; i < TIMES; i++) {
        check_rows();
        check_sums(below(4), 1 + below(6), below(5), below(5), 1);
    }
    check_no_rows();
    check_sums(8, 400, 64, 48, 4); /* so many that threads share them out */
    printf("kv_cache: %d times rows and sums\n", TIMES);
    return 0;
}
