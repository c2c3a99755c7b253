/*
 * cpu_count.c -- how many threads are worth having: the CPUs this process may run on,
 * or fewer if the cgroup it lives in (a container, a batch job) has a smaller quota.
 */
#ifndef _WIN32
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* Linux: sched_getaffinity */
#endif

#include "cpu_count.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int
cpus_online(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < INT_MAX ? (int)n : 1;
}

#ifdef __linux__

/* Where the kernel describes a process and its cgroups; a test has its own files. */
#ifndef CGROUP_ROOT
#define PROC_SELF "/proc/self"
#define CGROUP_ROOT "/sys/fs/cgroup"
#endif

/* The CPUs this thread may use; also when there are more than a cpu_set_t holds. */
static int
cpus_allowed(void)
{
    cpu_set_t set;
    bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    return known ? CPU_COUNT(&set) : cpus_online();
}

static int
least(int a, int b)
{
    return a < b ? a : b;
}

/* The text of directory/name, cut to size; "" if it cannot be read. */
static void
read_text(char *text, size_t size, const char *directory, const char *name)
{
    char path[PATH_MAX + 32];
    size_t have = 0, room = size - 1;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t got;
        while (room > 0 && (got = read(file, text + have, room)) > 0) {
            have += (size_t)got;
            room -= (size_t)got;
        }
        close(file);
    }
    text[have] = '\0';
}

/* The quota in one cgroup directory as a number of CPUs, rounded up; INT_MAX: none.
 * Version 2: one file, "quota period" or "max period". Version 1: a file for each. */
static int
quota_in(const char *directory)
{
    char text[64], *end;
    read_text(text, sizeof text, directory, "cpu.max");
    long long quota = strtoll(text, &end, 10), period = strtoll(end, NULL, 10);
    if (text[0] == '\0') {
        read_text(text, sizeof text, directory, "cpu.cfs_quota_us");
        quota = strtoll(text, NULL, 10);
        read_text(text, sizeof text, directory, "cpu.cfs_period_us");
        period = strtoll(text, NULL, 10);
    }
    if (quota <= 0 || period <= 0) {
        return INT_MAX;
    }
    long long cpus = (quota - 1) / period + 1;
    return cpus < INT_MAX ? (int)cpus : INT_MAX;
}

/* The strictest quota from `directory` up to its first `root` characters, the root of
 * its tree. In a container the path may be the host's: no such file, no quota. */
static int
quota_up_to(char *directory, size_t root)
{
    int quota = quota_in(directory);
    while (strlen(directory) > root) {
        *strrchr(directory, '/') = '\0';
        quota = least(quota, quota_in(directory));
    }
    return quota;
}

/* The tree in which these controllers, "" or "cpu,cpuacct", limit the CPU, or NULL. */
static const char *
cgroup_tree(char *controllers)
{
    char *rest, *name = strtok_r(controllers, ",", &rest);
    if (name == NULL) {
        return CGROUP_ROOT; /* version 2: one tree for everything */
    }
    while (name != NULL && strcmp(name, "cpu") != 0) {
        name = strtok_r(NULL, ",", &rest);
    }
    return name != NULL ? CGROUP_ROOT "/cpu" : NULL;
}

/* A line of /proc/self/cgroup: "0::/path" in version 2, "5:cpu,cpuacct:/path" in 1. */
static int
cpu_quota(void)
{
    char text[8192], directory[PATH_MAX], *rest;
    int quota = INT_MAX;
    read_text(text, sizeof text, PROC_SELF, "cgroup");
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':');
        char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL || path[1] != '/') {
            continue;
        }
        *path++ = '\0';
        const char *tree = cgroup_tree(controllers + 1);
        if (tree != NULL &&
            snprintf(directory, sizeof directory, "%s%s", tree, path) < PATH_MAX) {
            quota = least(quota, quota_up_to(directory, strlen(tree)));
        }
    }
    return quota;
}

int
attn_cpu_count(void)
{
    int count = least(cpus_allowed(), cpu_quota());
    return count > 1 ? count : 1;
}

#else

int
attn_cpu_count(void)
{
    return cpus_online();
}

#endif

#else
typedef int attn_no_cgroups; /* windows.c counts there */
#endif
