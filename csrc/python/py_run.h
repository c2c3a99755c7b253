/*
 * py_run.h -- running the core (py_run.c), and its scratch (py_memory.c).
 */
#ifndef PY_RUN_H
#define PY_RUN_H

#include "py_attnext.h"

/* One call into the core, of functions of attn.h that `context` holds the arguments
 * for: threads are planned, scratch is found, the GIL is given up, the core called, and
 * all of it undone.
 *     work    in multiply-adds, as attn_forward_work: a call of little keeps the GIL and
 *             one thread
 *     call    the core's int, which may be ATTN_NO_ROOM: it is called again
 * -1: an exception is set. */
typedef int py_core_call(const void *context, void *scratch, attn_run *run);
int py_run(const attnext_state *state, double work, py_core_call *call,
           const void *context);

/* The same with the GIL: so that nobody sees what is half done, Ctrl-C has to wait. It
 * cannot fail where no scratch is needed. */
int py_run_alone(const attnext_state *state, double work, py_core_call *call,
                 const void *context);

/* So many bytes at a multiple of 16, or of 64 if they are many, to be given back with
 * the same number; NULL without an exception. The GIL is not needed. */
void *py_take_scratch(size_t bytes);
void py_give_scratch(void *scratch, size_t bytes);

#endif
