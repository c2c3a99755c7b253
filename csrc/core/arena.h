/*
 * arena.h -- how a workspace is cut into arrays.
 *
 * The same code that hands out the arrays also counts them: with base NULL nothing is
 * handed out (every array is NULL) and `used` ends as the size to ask for. So a
 * workspace and its size cannot disagree. Sizes that overflow make `used` SIZE_MAX for
 * good. Where there are fewer bytes than that, arrays beyond them are NULL as well: a small
 * call lays its workspace out once, over what there is, and looks whether it was enough.
 */
#ifndef ATTN_ARENA_H
#define ATTN_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *base;        /* aligned to ATTN_ALIGN, or NULL to count only */
    size_t used, size; /* size: of what there is at base */
} attn_arena;

enum { ATTN_ALIGN = 64 };

/* An arena over a workspace of any alignment; the size asked for includes the slack. */
static inline attn_arena
attn_arena_over(void *workspace)
{
    attn_arena a = {NULL, 0, SIZE_MAX};
    if (workspace != NULL) {
        uintptr_t at = (uintptr_t)workspace;
        a.base = (char *)workspace + (ATTN_ALIGN - at % ATTN_ALIGN) % ATTN_ALIGN;
    }
    return a;
}

/* The same of `room` bytes; 0: as many as it takes. */
static inline attn_arena
attn_arena_within(void *workspace, size_t room)
{
    attn_arena a = attn_arena_over(workspace);
    if (room != 0) {
        a.size = room - (size_t)(a.base - (char *)workspace);
    }
    return a;
}

static inline size_t
attn_arena_size(const attn_arena *a)
{
    return a->used > SIZE_MAX - ATTN_ALIGN ? SIZE_MAX : a->used + ATTN_ALIGN;
}

/* Was there enough? If not, `room` becomes how many bytes it takes. */
static inline bool
attn_arena_fits(const attn_arena *a, size_t *room)
{
    if (a->used > a->size) {
        *room = attn_arena_size(a);
        return false;
    }
    return true;
}

/* n1 * n2 items of `size` bytes each, aligned to ATTN_ALIGN; n1, n2 >= 0. */
static inline void *
attn_take(attn_arena *a, size_t size, int64_t n1, int64_t n2)
{
    size_t bytes, rounded, end, start = a->used;
    if (__builtin_mul_overflow(n1, n2, &bytes) ||
        __builtin_mul_overflow(bytes, size, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)ATTN_ALIGN - 1, &rounded) ||
        __builtin_add_overflow(start, rounded / ATTN_ALIGN * ATTN_ALIGN, &end)) {
        a->used = SIZE_MAX;
        return NULL;
    }
    a->used = end;
    return a->base == NULL || end > a->size ? NULL : a->base + start;
}

static inline float *
attn_take_floats(attn_arena *a, int64_t n1, int64_t n2)
{
    return attn_take(a, sizeof(float), n1, n2);
}

#endif
