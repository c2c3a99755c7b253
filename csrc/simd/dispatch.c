/*
 * dispatch.c -- the one file that asks the CPU what it can do, once, at import.
 *
 * AVX state must be supported by the CPU (cpuid) and saved by the operating system
 * (xgetbv), so both are asked; a register the system does not save is as good as
 * absent.
 */
#include "dispatch.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels.h"

const attn_kernels *attn_simd = &attn_kernels_generic;

#if defined(__x86_64__)
#include <cpuid.h>

enum {
    XCR0_AVX = 0x06,
    XCR0_AVX512 = 0xe6
}; /* xmm + ymm; and opmask + both zmm halves */

static unsigned
xgetbv0(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void
detect_x86(bool *avx2, bool *avx512)
{
    unsigned a, b, c, d;
    *avx2 = *avx512 = false;
    if (!__get_cpuid(1, &a, &b, &c, &d)) {
        return;
    }
    bool fma = c & bit_FMA, osxsave = c & bit_OSXSAVE, avx = c & bit_AVX;
    unsigned saved = osxsave ? xgetbv0() : 0;
    if (!fma || !avx || (saved & XCR0_AVX) != XCR0_AVX ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        return;
    }
    bool wide = (saved & XCR0_AVX512) == XCR0_AVX512;
    *avx2 = b & bit_AVX2;
    *avx512 = *avx2 && wide && (b & bit_AVX512F) && (b & bit_AVX512DQ);
}
#endif

/* Narrowest first; NULL where this CPU lacks it. */
enum { SETS = 5 };
static const char *const set_names[SETS] = {"scalar", "generic", "avx2", "avx512",
                                            "wasm"};

static void
list_sets(const attn_kernels *sets[SETS])
{
    sets[0] = &attn_kernels_scalar;
    sets[1] = &attn_kernels_generic;
    sets[2] = sets[3] = sets[4] = NULL;
#if defined(__x86_64__)
    bool avx2, avx512;
    detect_x86(&avx2, &avx512);
    sets[2] = avx2 ? &attn_kernels_avx2 : NULL;
    sets[3] = avx512 ? &attn_kernels_avx512 : NULL;
#elif defined(__wasm_simd128__)
    sets[4] = &attn_kernels_wasm; /* the module would not have loaded without */
#endif
}

const char *
attn_cpu_select(const char *wanted)
{
    static char message[128];
    const attn_kernels *sets[SETS], *chosen = NULL;
    bool any = wanted == NULL || *wanted == '\0', known = false;

    list_sets(sets);
    for (int i = 0; i < SETS; i++) {
        bool match = any || strcmp(wanted, set_names[i]) == 0;
        known = known || match;
        if (match && sets[i] != NULL) {
            chosen = sets[i];
        }
    }
    if (chosen != NULL) {
        attn_simd = chosen;
        return NULL;
    }
    int used = snprintf(message, sizeof message, "%s; this CPU can use:",
                        known ? "not supported by this CPU"
                              : "unknown instruction set");
    for (int i = 0; i < SETS; i++) {
        if (sets[i] != NULL) {
            used += snprintf(message + used, sizeof message - (size_t)used, " %s",
                             set_names[i]);
        }
    }
    return message;
}

const char *
attn_cpu_name(void)
{
    return attn_simd->name;
}

int
attn_cpu_available(const char *names[], int most)
{
    const attn_kernels *sets[SETS];
    int n = 0;

    list_sets(sets);
    for (int i = 0; i < SETS; i++) {
        if (sets[i] != NULL && n < most) {
            names[n++] = set_names[i];
        }
    }
    return n;
}
