/*
 * dispatch.h -- which instruction set the kernels use.
 */
#ifndef ATTN_DISPATCH_H
#define ATTN_DISPATCH_H

/* Chooses the kernels: the widest this CPU and its operating system support, or
 * `wanted` (NULL or "": no wish). Returns NULL, or what is wrong with the wish. Call
 * once, first. */
const char *attn_cpu_select(const char *wanted);

/* The chosen one: "scalar", "generic", "avx2" or "avx512". */
const char *attn_cpu_name(void);

/* Fills names, narrowest first, with those that run here; returns how many (at most
 * `most`). */
int attn_cpu_available(const char *names[], int most);

#endif
