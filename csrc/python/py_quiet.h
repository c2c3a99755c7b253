/*
 * py_quiet.h -- in a build with assertions: no Python code runs, and no collection starts,
 * between the last reading of the arguments and the end of the core. In any other build
 * this is nothing.
 *
 *     py_quiet_exec()     watches from now on; -1: an exception is set
 *     py_quiet_begin()    from here on: py_make_plain; in a memory, which begins anew where
 *                         code changes it while room is made, each call of the core
 *     py_quiet_end(X)     X, what the core's call gave (py_run); if that is 0, what this
 *                         thread ran since then is a fatal error. What raises may run what
 *                         it likes.
 *     py_quiet_but(X)     X, an int, with what it runs left out: handlers of signals
 */
#ifndef PY_QUIET_H
#define PY_QUIET_H

#ifdef NDEBUG
#define py_quiet_exec() 0
#define py_quiet_begin() ((void)0)
#define py_quiet_end(X) (X)
#define py_quiet_but(X) (X)
#else
int py_quiet_exec(void);
void py_quiet_begin(void);
int py_quiet_end(int result);
#define py_quiet_but(X) py_quiet_forget(py_quiet_runs(), X)
unsigned long long py_quiet_runs(void); /* frames and collections that began */
int py_quiet_forget(unsigned long long runs, int result);
#endif

#endif
