/*
 * threads.h -- threads for the pool of parallel.c: made without side effects on the
 * program, and kept on CPUs where they help.
 */
#ifndef ATTN_THREADS_H
#define ATTN_THREADS_H

#include <pthread.h>
#include <stdbool.h>

/* Starts threads until there are `wanted`, or as many as can be had; `have` of them
 * run already. Returns how many there are. They never end and take no signals of the
 * program. */
int attn_threads_start(pthread_t *threads, int have, int wanted, void *(*body)(void *));

/* Keeps the threads within the CPUs allowed to the caller, and off the one it is on if
 * `helpers` of them fit on the others. Returns whether they do. */
bool attn_threads_place(const pthread_t *threads, int count, int helpers);

#endif
