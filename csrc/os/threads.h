/*
 * threads.h -- what the pool of parallel.c asks of the system: threads made without
 * side effects on the program and kept on CPUs where they help, a lock with two events
 * to wait for under it, and a clock. threads.c has it of POSIX, windows.c of Windows.
 */
#ifndef ATTN_THREADS_H
#define ATTN_THREADS_H

#include <stdbool.h>
#include <stdint.h>

enum { ATTN_THREADS_MAX = 255 }; /* as many as eight bits of parallel.c's word count */

/* Starts threads until there are `wanted`, or as many as can be had. Returns how many
 * there are. They never end and take no signals of the program. */
int attn_threads_start(int wanted, void *(*body)(void *));

/* Keeps the threads within the CPUs allowed to the caller, and off the one it is on if
 * `helpers` of them fit on the others. Returns whether they do. */
bool attn_threads_place(int helpers);

/* In the child of a fork() there are none, and the lock is free. */
void attn_threads_forget(void);

/* Calls reset() in the child of every fork() from now on. Returns whether it will; true
 * where no process forks. */
bool attn_after_fork(void (*reset)(void));

/* Returns question(arg). If the question ends the thread instead, so does this, after
 * give_up(call). */
bool attn_ask(bool (*question)(void *), void *arg, void (*give_up)(void *), void *call);

void attn_lock(void);
void attn_unlock(void);

/* Waits without the lock, returns with it: on a signal, after so long, or for nothing. */
enum attn_event { ATTN_OPENED, ATTN_EMPTIED };
#define ATTN_FOREVER INT64_C(-1)
void attn_wait(enum attn_event event, int64_t ns);
void attn_signal(enum attn_event event);

/* Of a clock that never goes back. */
int64_t attn_now_ns(void);

#endif
