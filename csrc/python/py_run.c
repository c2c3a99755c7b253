/*
 * py_run.c -- one call into the core: how many threads, with or without the GIL, where
 * its scratch lies, and how Ctrl-C gets through.
 */
#include "py_attnext.h"

/* Multiply-adds below which a call keeps the GIL and one thread: some 10 us of work.
 * Getting the GIL back can take longer than that when other threads want it. */
static const double worth_releasing = 50e3;

/* The core asks about every 20 ms, on the caller's thread, whether to stop. */
static bool
interrupted(void *arg)
{
    py_run *run = arg;
    PyEval_RestoreThread(run->thread);
    run->raised = PyErr_CheckSignals() < 0;
    run->thread = PyEval_SaveThread();
    return run->raised;
}

/* More threads than this the pool does not have, and each would get scratch. */
enum { THREADS_MAX = 256 };

void
py_plan(py_run *run, attnext_state *state, double work)
{
    int threads = state->threads < THREADS_MAX ? state->threads : THREADS_MAX;
    run->release = work >= worth_releasing;
    run->run = (attn_run){.threads = run->release ? threads : 1};
    run->raised = false;
    run->thread = NULL;
    run->heap = NULL;
    if (run->release) {
        run->run.interrupted = interrupted;
        run->run.arg = run;
    }
}

void *
py_scratch(py_run *run, size_t bytes)
{
    if (bytes <= sizeof run->stack) {
        return run->stack;
    }
    if (bytes > PY_SSIZE_T_MAX) {
        PyErr_SetString(PyExc_ValueError,
                        "the arrays are too large: the memory this call needs "
                        "has a size that overflows");
        return NULL;
    }
    run->heap = PyMem_RawMalloc(bytes);
    if (run->heap == NULL) {
        PyErr_NoMemory();
    }
    return run->heap;
}

void
py_enter(py_run *run)
{
    if (run->release) {
        run->thread = PyEval_SaveThread();
    }
}

int
py_leave(py_run *run, int rc)
{
    if (run->release) {
        PyEval_RestoreThread(run->thread);
    }
    PyMem_RawFree(run->heap);
    return rc != 0 || run->raised ? -1 : 0;
}
