/*
 * fuzz_main.c -- the fuzz target where there is no libFuzzer: on the inputs 0 .. n - 1.
 *
 *     cc -std=c11 -O1 -pthread tests/c/fuzz_attention.c tests/c/fuzz_main.c \
 *         csrc/(core,os,simd)/(all).c -lm
 *     ./a.out 500
 *
 * Prints a checksum of every bit the scalar kernels computed on the way. It is the same on
 * every machine, which is how the bits of two architectures are compared.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern uint64_t fuzz_checksum;
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

int
main(int argc, char **argv)
{
    unsigned long n = argc == 2 ? strtoul(argv[1], NULL, 10) : 0;
    if (n == 0) {
        fprintf(stderr, "usage: %s number-of-inputs\n", argv[0]);
        return 2;
    }
    for (unsigned long i = 0; i < n; i++) {
        const uint8_t data[4] = {i & 255, i >> 8 & 255, i >> 16 & 255, i >> 24 & 255};
        LLVMFuzzerTestOneInput(data, sizeof data);
    }
    printf("%lu problems, checksum %016llx\n", n, (unsigned long long)fuzz_checksum);
    return 0;
}
