/*
 * py_run.h -- running the core (py_run.c), and its scratch (py_memory.c); and what asserts that
 * nothing else runs meanwhile (py_quiet.c).
 */
#ifndef PY_RUN_H
#define PY_RUN_H

#include "py_attnext.h"

/* One call into the core, of functions of attn.h that `context` holds the arguments
 * for: threads are planned, scratch is found, the GIL is given up, the core called, and
 * all of it undone.
 *     work    in multiply-adds, as attn_forward_work: a call of little keeps the GIL and
 *             one thread
 *     release false: nobody is to see what is half done, so the GIL is kept, and Ctrl-C has
 *             to wait; without a need for scratch it cannot fail
 *     call    the core's int, which may be ATTN_NO_ROOM: it is called again
 * -1: an exception is set. */
typedef int py_core_call(const void *context, void *scratch, attn_run *run);
int py_run(const attnext_state *state, double work, bool release, py_core_call *call,
           const void *context);

/* So many bytes at a multiple of 16, or of 64 if they are many, to be given back with
 * the same number; NULL without an exception. The GIL is not needed. */
void *py_take_scratch(size_t bytes);
void py_give_scratch(void *scratch, size_t bytes);

/* There is no memory of so many bytes, or they cannot be counted: what needs it. */
int py_refuse(size_t bytes, const char *what);

/* In a build with assertions (py_quiet.c): no Python code runs, and no collection starts,
 * between the last reading of the arguments and the end of the core. In any other build
 * this is nothing.
 *
 *     py_quiet_exec()     watches from now on; -1: an exception is set
 *     py_quiet_begin()    from here on: py_make_plain; in a memory, which begins anew where
 *                         code changes it while room is made, each call of the core
 *     py_quiet_end(X)     X, what the core's call gave (py_run); if that is 0, what this
 *                         thread ran since then is a fatal error. What raises may run what
 *                         it likes.
 *     py_quiet_runs       how much did, frames and collections; py_quiet_forget() leaves
 *                         out what did since it was so many: handlers of signals */
#ifdef NDEBUG
#define py_quiet_exec() 0
#define py_quiet_begin() ((void)0)
#define py_quiet_end(X) (X)
#define py_quiet_runs 0
#define py_quiet_forget(RUNS) ((void)(RUNS))
#else
extern _Thread_local unsigned long py_quiet_runs;
int py_quiet_exec(void);
int py_quiet_end(int result);
#define py_quiet_begin() ((void)(py_quiet_runs = 0))
#define py_quiet_forget(RUNS) ((void)(py_quiet_runs = (RUNS)))
#endif

#endif
