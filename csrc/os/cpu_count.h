/*
 * cpu_count.h -- how many threads are worth having.
 */
#ifndef ATTN_CPU_COUNT_H
#define ATTN_CPU_COUNT_H

/* min(CPUs this process may run on, its cgroup's CPU quota), at least 1. */
int attn_cpu_count(void);

#endif
