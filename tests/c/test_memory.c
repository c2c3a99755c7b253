/*
 * test_memory.c -- large blocks of memory come, go and are kept, on any system.
 *
 *     cc -std=c11 -pthread tests/c/test_memory.c csrc/os/(all).c
 *
 * More is taken in all than a 32-bit machine has: what is given back is really back.
 */
#undef NDEBUG /* the checks are asserts */

#include "../../csrc/os/memory.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>

enum { MIB = 1 << 20, TIMES = 60 };

static void
take_and_give(size_t bytes)
{
    char *block = attn_memory_take(bytes);
    assert(block != NULL && (uintptr_t)block % 64 == 0);
    assert(attn_memory_size(block) == bytes);
    block[0] = block[bytes - 1] = 1;
    attn_memory_give(block);
}

int
main(void)
{
    for (int i = 0; i < TIMES; i++) {
        take_and_give((size_t)100 * MIB);
        assert(attn_memory_kept() == 0);
    }
    attn_memory_set_limit((size_t)256 * MIB);
    for (int i = 0; i < TIMES; i++) {
        take_and_give((size_t)100 * MIB);
        assert(attn_memory_kept() >= (size_t)100 * MIB);
        take_and_give((size_t)(40 + i) * MIB); /* none that is kept fits all of these */
        assert(attn_memory_kept() <= (size_t)256 * MIB);
    }
    assert(attn_memory_take(SIZE_MAX / 4 * 3) == NULL);
    attn_memory_release();
    assert(attn_memory_kept() == 0);
    printf("memory: %d times 100 MiB, some of them kept\n", 2 * TIMES);
    return 0;
}
