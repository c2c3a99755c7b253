/*
 * parallel.h -- one verb, parallel_for, and the small pool of threads behind it.
 *
 * The partition into tasks is the caller's and a function of the shape alone; every
 * element of the output has one task that writes it. So a result never depends on the
 * number of threads.
 */
#ifndef ATTN_PARALLEL_H
#define ATTN_PARALLEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One call into the core: how many threads it may use, and how it is interrupted. */
typedef struct {
    int threads; /* at most this many, the caller's own included; >= 1 */
    /* Asked about every 20 ms, on the caller's thread only; true stops the call. NULL:
     * never asked. May end the thread (pthread_exit): the call stops, no worker has to
     * do with it any more, and only then its stack goes. May fork: in the child the
     * call stops if it had workers. */
    bool (*interrupted)(void *arg);
    void *arg;
    /* Bytes of the workspace, where nobody has asked how many it takes: if they are too
     * few, the call does nothing but say so here. 0: as many as it takes. */
    size_t room;
    int64_t next_poll_ns; /* zero-initialise this and what follows */
    atomic_bool stop;
} attn_run;

/* 0 <= task < tasks; 0 <= worker < run->threads, 0 being the caller's thread. */
typedef void attn_task(void *ctx, int64_t task, int worker);

/* Runs fn(ctx, 0..tasks-1), each once, in any order, on up to run->threads threads;
 * returns when all are done. work_us: estimated time of all tasks together on one
 * thread; below about 50 us everything runs on the caller's thread. After an interrupt
 * the remaining tasks are left out and false is returned. */
bool attn_parallel_for(attn_run *run, int64_t tasks, double work_us, attn_task *fn,
                       void *ctx);

/* To be asked inside long tasks, every millisecond or so: true means give up now. */
bool attn_stopped(attn_run *run, int worker);

#endif
