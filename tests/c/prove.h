/*
 * prove.h -- read before every file that is proved (prove_sizes.c, prove_indices.c): the compiler's arithmetic
 * with overflow, in words of the checker's, and what it takes for granted.
 *
 * The checker computes with integers that have no size, and asks of every sum, difference,
 * product and conversion whether it fits its type. So nothing ever wraps around in what it
 * calls proved, and products of sizes cost it nothing.
 */
#ifndef ATTN_PROVE_H
#define ATTN_PROVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void __ESBMC_assume(_Bool);
void __ESBMC_assert(_Bool, const char *);
int nondet_int(void);
bool nondet_bool(void);
int64_t nondet_int64(void);

typedef __int128 prove_wide;
prove_wide nondet_wide(void);

/* NumPy's own limit, of float32, for every axis of empty arrays as well. */
#define MOST (((int64_t)1 << 61) - 1)

static inline int64_t
any_size(int64_t least, int64_t most)
{
    const prove_wide n = nondet_wide();
    __ESBMC_assume(n >= (prove_wide)least && n <= (prove_wide)most);
    return (int64_t)n;
}

#define PROVE_LEAST(x) \
    _Generic((x), int64_t: -(prove_wide)INT64_MAX, size_t: (prove_wide)0)
#define PROVE_MOST(x) \
    _Generic((x), int64_t: (prove_wide)INT64_MAX, size_t: (prove_wide)SIZE_MAX)

/* What is left where it does not fit is some number. */
#define PROVE_FITS(result, to)                                                  \
    ({                                                                          \
        const prove_wide r_ = (result);                                         \
        const bool fits_ = r_ >= PROVE_LEAST(*(to)) && r_ <= PROVE_MOST(*(to)); \
        if (fits_) {                                                            \
            *(to) = (__typeof__(*(to)))r_;                                      \
        }                                                                       \
        !fits_;                                                                 \
    })
#define __builtin_mul_overflow(x, y, to) \
    PROVE_FITS((prove_wide)(x) * (prove_wide)(y), to)
#define __builtin_add_overflow(x, y, to) \
    PROVE_FITS((prove_wide)(x) + (prove_wide)(y), to)

/* What the checker does not see at once of products, and prove_indices.c proves: i of n steps of `size`. */
static bool
is_within(prove_wide i, prove_wide n, prove_wide size)
{
    return i * size + size <= n * size;
}

static void
step(int64_t i, int64_t n, int64_t size)
{
    __ESBMC_assert(i >= 0 && i < n && size >= 0, "what prove_steps asks for");
    __ESBMC_assume(is_within((prove_wide)i, (prove_wide)n, (prove_wide)size));
}

#ifdef PROVE_CALLS
/* In the place of arena.h, which is proved by itself: how much is taken does not matter,
 * only what is asked for. */
#define ATTN_ARENA_H
typedef struct {
    char *base;
    size_t used, size;
} attn_arena;

enum { ATTN_ALIGN = 64 };

static inline attn_arena
attn_arena_over(void *workspace)
{
    return (attn_arena){workspace, 0, SIZE_MAX};
}

static inline attn_arena
attn_arena_within(void *workspace, size_t room)
{
    return (attn_arena){workspace, 0, room};
}

static inline size_t
attn_arena_size(const attn_arena *a)
{
    return a->used;
}

static inline bool
attn_arena_fits(const attn_arena *a, size_t *room)
{
    (void)room;
    return a->used <= a->size;
}

static inline void *
attn_take(attn_arena *a, size_t size, int64_t n1, int64_t n2)
{
    __ESBMC_assert(size > 0 || n1 >= 0, "a size");
    __ESBMC_assert(n1 >= 0, "so many");
    __ESBMC_assert(n2 >= 0, "times so many");
    (void)a;
    return NULL;
}

static inline float *
attn_take_floats(attn_arena *a, int64_t n1, int64_t n2)
{
    return attn_take(a, sizeof(float), n1, n2);
}
#endif

#endif
