/*
 * py_run.c -- one call into the core: how many threads, with or without the GIL, where
 * its scratch lies, and how Ctrl-C gets through.
 */
#include "py_attnext.h"

/* Multiply-adds below which a call keeps the GIL and one thread. Getting the GIL back
 * can take longer than they do when other threads want it. */
static const double WORTH_RELEASING = 50e3;

/* More threads than this the pool does not have, and each would get scratch. */
enum { MOST_THREADS = 256 };

typedef struct {
    attn_run run;
    bool raised;           /* a signal handler raised, and the exception is set */
    PyThreadState *thread; /* set while the GIL is given up */
} released_run;

/* The core asks about every 20 ms, on the caller's thread, whether to stop. */
static bool
interrupted(void *arg)
{
    released_run *r = arg;
    PyEval_RestoreThread(r->thread);
    r->raised = PyErr_CheckSignals() < 0;
    r->thread = PyEval_SaveThread();
    return r->raised;
}

/* Scratch of this size on the heap; ValueError or MemoryError. */
static void *
allocate(size_t bytes)
{
    if (bytes > PY_SSIZE_T_MAX) {
        PyErr_SetString(PyExc_ValueError,
                        "the arrays are too large: the memory this call needs "
                        "has a size that overflows");
        return NULL;
    }
    void *heap = PyMem_RawMalloc(bytes);
    if (heap == NULL) {
        PyErr_NoMemory();
    }
    return heap;
}

static int
run_core(const attnext_state *state, bool threads, bool release,
         py_workspace *workspace, py_core_call *call, const void *context)
{
    _Alignas(64) char stack[32 * 1024];
    released_run r = {.run = {.threads = 1}};
    void *heap = NULL;

    if (threads) {
        r.run.threads = Py_MIN(state->threads, MOST_THREADS);
    }
    if (release) {
        r.run.interrupted = interrupted;
        r.run.arg = &r;
    }
    size_t bytes = workspace == NULL ? 0 : workspace(context, r.run.threads);
    if (bytes > sizeof stack && (heap = allocate(bytes)) == NULL) {
        return -1;
    }
    if (release) {
        r.thread = PyEval_SaveThread();
    }
    int result = call(context, heap == NULL ? stack : heap, &r.run);
    if (release) {
        PyEval_RestoreThread(r.thread);
    }
    PyMem_RawFree(heap);
    return result != 0 || r.raised ? -1 : 0;
}

int
py_run(const attnext_state *state, double work, py_workspace *workspace,
       py_core_call *call, const void *context)
{
    const bool worth = work >= WORTH_RELEASING;
    return run_core(state, worth, worth, workspace, call, context);
}

int
py_run_alone(const attnext_state *state, double work, py_workspace *workspace,
             py_core_call *call, const void *context)
{
    return run_core(state, work >= WORTH_RELEASING, false, workspace, call, context);
}
