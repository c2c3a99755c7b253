/*
 * memory.h -- large blocks of memory, of which some are kept for the next call.
 *
 * The kernel clears every page before a process sees it. For results of 64 MiB that is
 * a third of the time of a masked softmax; memory that was used before comes without.
 * malloc keeps what is smaller than ATTN_LARGE by itself, most often: of gradients that go
 * together it may return all, and whether it does depends on what else the process
 * allocates. (8, 8, 512, 512, 64) backward, whose three gradients have 8 MiB each: 81.0 ms
 * where blocks began at 16 MiB, 76.8 now, on two threads 42.4 -> 38.9 (Sapphire Rapids). From
 * 4 MiB on, a softmax of that size takes 15 % longer (Zen 5).
 */
#ifndef ATTN_MEMORY_H
#define ATTN_MEMORY_H

#include <stddef.h>

#ifndef ATTN_LARGE /* bytes; CI builds with fewer, so that small arrays lie in blocks too */
#define ATTN_LARGE ((size_t)8 << 20)
#endif

/* A block of so many bytes, at a multiple of 64, contents undefined. NULL: there is no
 * memory. Any thread may call any of these at any time. */
void *attn_memory_take(size_t bytes);

/* Gives a block back, to be kept or not. NULL is none. */
void attn_memory_give(void *block);

/* How many bytes of a block were asked for. */
size_t attn_memory_size(const void *block);

/* Sets how many bytes are kept at most; 0: none. */
void attn_memory_set_limit(size_t bytes);
size_t attn_memory_limit(void);

/* How many bytes are kept now; gives them all back to the system. */
size_t attn_memory_kept(void);
void attn_memory_release(void);

#endif
