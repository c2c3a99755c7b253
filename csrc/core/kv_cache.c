/*
 * kv_cache.c -- see kv_cache.h.
 */
#include "kv_cache.h"

#include <string.h>

#include "arena.h"

/* ---- rows ------------------------------------------------------------------------ */

/* Where row j of entry e begins, in bytes. */
static size_t
row_at(int64_t rows, int64_t e, int64_t j, size_t size)
{
    return (size_t)(e * rows + j) * size;
}

/* n more rows, of `size` bytes each, of every entry of an array of *kv become the first of
 * `from`, which has so many, or, if that is NULL, bytes of 1: keys to which a mask says
 * nothing. */
static void
put_rows(const attn_kv *kv, void *to, int64_t n, const void *from, int64_t rows,
         size_t size)
{
    if (n == 0 || size == 0) { /* however many entries there are */
        return;
    }
    for (int64_t e = 0; e < kv->entries; e++) {
        char *row = (char *)to + row_at(kv->p.N, e, kv->rows, size);
        if (from == NULL) {
            memset(row, 1, (size_t)n * size);
        } else {
            memcpy(row, (const char *)from + row_at(rows, e, 0, size),
                   (size_t)n * size);
        }
    }
}

void
attn_kv_append(attn_kv *kv, int64_t n, const attn_kv_rows *from)
{
    const size_t key = (size_t)kv->p.Dk * sizeof(float);
    const size_t value = (size_t)kv->p.Dv * sizeof(float);
    put_rows(kv, kv->keys, n, from->keys, from->rows, key);
    put_rows(kv, kv->values, n, from->values, from->rows, value);
    if (kv->mask != NULL) {
        put_rows(kv, kv->mask, n, from->mask, from->rows, 1);
    }
    kv->rows += n;
}

bool
attn_kv_takes(const attn_kv *kv, int64_t n, bool masked)
{
    return kv->p.N - kv->rows >= n && (!masked || kv->mask != NULL);
}

/* ---- what is made of the keys ---------------------------------------------------- */

int
attn_kv_prepare(attn_kv *kv, attn_run *run)
{
    attn_problem p = kv->p;
    p.N = kv->rows;
    const int result = kv->prepared == NULL
                           ? 0
                           : kv->maker->make(kv->prepared, &kv->in, kv->made, kv->rows,
                                             &p, run);
    kv->made = result == 0 ? kv->rows : kv->made;
    return result;
}

double
attn_kv_work(const attn_kv *kv)
{
    const attn_problem *p = &kv->p;
    return (double)p->B * (double)(kv->rows - kv->made) * (double)p->Dk *
           (double)kv->maker->key_width(p);
}

/* ---- a cache --------------------------------------------------------------------- */

/* One like `of`, without rows and arrays, for `end` keys at least. B counts heads, too; more
 * than there can be are too many for the maker, which then says so. */
static attn_kv
like(const attn_kv *of, int64_t end)
{
    attn_kv kv = {.maker = of->maker, .entries = of->entries, .p = of->p, .holders = 1};
    const int64_t had = of->p.N, twice = had > INT64_MAX / 2 ? end : 2 * had;
    if (end > had) {
        kv.p.N = twice > end ? twice : end;
    }
    if (kv.p.heads == 0) {
        kv.p.B = kv.entries;
    } else if (__builtin_mul_overflow(kv.entries, kv.p.heads, &kv.p.B)) {
        kv.p.B = INT64_MAX / kv.p.heads * kv.p.heads;
    }
    return kv;
}

/* The arrays of *kv, and before them it. */
static attn_kv *
lay_out(attn_kv *kv, bool masked, attn_arena *a)
{
    const attn_problem *p = &kv->p;
    const size_t prepared = kv->maker->size(p, p->N);
    attn_kv *place = attn_take(a, sizeof *kv, 1, 1);
    kv->keys = attn_take(a, (size_t)p->Dk * sizeof(float), kv->entries, p->N);
    kv->values = attn_take(a, (size_t)p->Dv * sizeof(float), kv->entries, p->N);
    kv->mask = masked ? attn_take(a, 1, kv->entries, p->N) : NULL;
    kv->prepared = NULL;
    if (prepared > PTRDIFF_MAX) {
        a->used = SIZE_MAX;
    } else if (prepared > 0) {
        kv->prepared = attn_take(a, prepared, 1, 1);
    }
    return place;
}

attn_kv *
attn_kv_moved(const attn_kv *of, int64_t n, bool masked, attn_take_block *take,
              size_t *bytes)
{
    const attn_kv_rows had = {of->keys, of->values, of->mask, of->p.N};
    attn_kv kv = like(of, of->rows + n);
    attn_arena a = attn_arena_over(NULL);
    masked = masked || of->mask != NULL;
    lay_out(&kv, masked, &a);
    *bytes = kv.bytes = attn_arena_size(&a);
    kv.block = kv.bytes > PTRDIFF_MAX ? NULL : take(kv.bytes);
    if (kv.block == NULL) {
        return NULL;
    }
    a = attn_arena_over(kv.block);
    attn_kv *place = lay_out(&kv, masked, &a);
    kv.in.keys = attn_dense(kv.keys, kv.p.N, kv.p.Dk);
    kv.in.values = attn_dense(kv.values, kv.p.N, kv.p.Dv);
    if (masked) {
        kv.p.masks.keys = (attn_key_mask){kv.mask, 1, kv.p.N};
    }
    if (kv.prepared != NULL) {
        kv.maker->start(kv.prepared, &kv.p, kv.p.N);
    }
    attn_kv_append(&kv, of->rows, &had);
    *place = kv;
    return place;
}

void
attn_kv_hold(attn_kv *kv)
{
    kv->holders++;
}

void
attn_kv_release(attn_kv *kv, attn_give_block *give)
{
    if (--kv->holders == 0) {
        give(kv->block, kv->bytes);
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
attn_add(float *to, const float *from, int64_t n)
{
    add_row(to, from, n, false);
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
