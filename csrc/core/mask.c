/*
 * mask.c -- lengths turned into limits, and limits into tiles to skip, take whole, or
 * mask.
 */
#include "mask.h"

#include <string.h>

int64_t
attn_limit(const attn_valid_lens *valid, int64_t b, int64_t m, int64_t N)
{
    if (valid->lens == NULL) {
        return N;
    }
    return valid->lens[(b / valid->heads) * valid->stride_b + m * valid->stride_m];
}

int64_t
attn_keys_used(const attn_problem *p, int64_t b)
{
    if (p->valid.lens == NULL || p->valid.stride_m == 0) {
        return p->M > 0 ? attn_limit(&p->valid, b, 0, p->N) : 0;
    }
    int64_t most = 0;
    for (int64_t m = 0; m < p->M; m++) {
        int64_t limit = attn_limit(&p->valid, b, m, p->N);
        most = limit > most ? limit : most;
    }
    return most;
}

int64_t
attn_used_queries(const attn_problem *p, int64_t b, int64_t m)
{
    bool used = attn_limit(&p->valid, b, m, p->N) > 0;
    int64_t n = 1;
    while (m + n < p->M && (attn_limit(&p->valid, b, m + n, p->N) > 0) == used) {
        n++;
    }
    return used ? n : -n;
}

int64_t
attn_used_keys(const attn_problem *p, int64_t b, int64_t j)
{
    int64_t used = attn_keys_used(p, b);
    return j < used ? used - j : -(p->N - j);
}

/* An empty row under "uniform" is an ordinary row over all N keys whose scores are all
 * 0: one mechanism, no special case in the walk. With no keys at all there is nothing
 * to spread the weight over, and every mode gives 0. */
void
attn_rows_of(attn_rows *rows, const attn_problem *p, int64_t b, int64_t m0, int count)
{
    bool uniform = p->empty_rows == ATTN_EMPTY_UNIFORM && p->N > 0;
    rows->count = count;
    rows->low = p->N;
    rows->high = rows->scored_high = 0;
    rows->empty = rows->uniform = 0;
    rows->empty_rows = p->N > 0 ? p->empty_rows : ATTN_EMPTY_ZERO;
    for (int l = 0; l < count; l++) {
        int64_t limit = attn_limit(&p->valid, b, m0 + l, p->N);
        uint64_t bit = (uint64_t)1 << l;
        if (limit == 0) {
            rows->empty |= bit;
            rows->uniform |= uniform ? bit : 0;
            limit = uniform ? p->N : 0;
        } else if (limit > rows->scored_high) {
            rows->scored_high = limit;
        }
        rows->limit[l] = limit;
        rows->low = limit < rows->low ? limit : rows->low;
        rows->high = limit > rows->high ? limit : rows->high;
    }
}

void
attn_first_tile(attn_tile *t)
{
    t->k0 = -ATTN_KEYS;
}

/* live[key]: the lanes whose limit lies beyond that key. Every lane leaves at its
 * limit, so one pass over the lanes and one over the keys is enough. */
static void
live_words(uint64_t live[ATTN_KEYS], const attn_rows *rows, int64_t k0, int keys)
{
    uint64_t leaves[ATTN_KEYS] = {0}, here = 0;
    for (int l = 0; l < rows->count; l++) {
        int64_t limit = rows->limit[l] - k0;
        here |= limit > 0 ? (uint64_t)1 << l : 0;
        if (limit > 0 && limit < keys) {
            leaves[limit] |= (uint64_t)1 << l;
        }
    }
    for (int i = 0; i < keys; i++) {
        here &= ~leaves[i];
        live[i] = here;
    }
}

bool
attn_next_tile(attn_tile *t, const attn_rows *rows)
{
    t->k0 += ATTN_KEYS;
    if (t->k0 >= rows->high) {
        return false;
    }
    int64_t left = rows->high - t->k0;
    t->keys = left < ATTN_KEYS ? (int)left : ATTN_KEYS;
    t->live = t->scored = NULL;
    if (t->k0 + t->keys > rows->low || rows->uniform != 0) {
        live_words(t->words[0], rows, t->k0, t->keys);
        t->live = t->scored = t->words[0];
    }
    if (rows->uniform != 0) {
        for (int i = 0; i < t->keys; i++) {
            t->words[1][i] = t->words[0][i] & ~rows->uniform;
        }
        t->scored = t->words[1];
    }
    return true;
}
