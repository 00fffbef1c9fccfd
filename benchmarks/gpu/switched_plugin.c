/* ncclscope's NCCL profiler plugin with a switch, to measure what it costs within one process.
 *
 * NCCL reports the events whose bits are set in a mask that it reads at each call, and leaves the
 * others out by one branch. This passes everything on to the plugin that SWITCHED_PLUGIN names, and
 * clears that mask, or restores it, when switched_set() is called. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "profiler_abi.h"

#define EXPORT __attribute__((visibility("default")))
#define MASKS 64

static struct { int *mask, wanted; } masks[MASKS];
static int used, on = 1;

EXPORT struct np_profiler_v4 ncclProfiler_v4;
EXPORT struct np_profiler ncclProfiler_v5, ncclProfiler_v6, ncclProfiler_v7;
static struct np_profiler_v4 *inner_v4;
static struct np_profiler *inner[8];

/* NCCL creates communicators one at a time in a process that measures. */
static void keep(int *mask)
{
    int place = 0;
    while (place < used && masks[place].mask != mask)
        place++;
    if (mask == NULL || place == MASKS)
        return;
    used = place == used ? used + 1 : used;
    masks[place].mask = mask;
    masks[place].wanted = *mask;
    if (!on)
        __atomic_store_n(mask, 0, __ATOMIC_RELAXED);
}

EXPORT int switched_set(int to)
{
    on = to;
    for (int place = 0; place < used; place++)
        __atomic_store_n(masks[place].mask, on ? masks[place].wanted : 0, __ATOMIC_RELAXED);
    return used;
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes,
                   int ranks, int rank, np_logger *log)
{
    int status = inner_v4->init(context, mask, name, hash, nodes, ranks, rank, log);
    keep(mask);
    return status;
}

#define INIT(version)                                                                          \
    static int init_v##version(void **context, uint64_t hash, int *mask, const char *name,     \
                               int nodes, int ranks, int rank, np_logger *log)                 \
    {                                                                                          \
        int status = inner[version]->init(context, hash, mask, name, nodes, ranks, rank, log); \
        keep(mask);                                                                            \
        return status;                                                                         \
    }
INIT(5)
INIT(6)
INIT(7)

__attribute__((constructor)) static void load(void)
{
    const char *path = getenv("SWITCHED_PLUGIN");
    void *library = path == NULL ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL)
        abort(); /* a benchmark that would measure nothing */
    inner_v4 = dlsym(library, "ncclProfiler_v4");
    inner[5] = dlsym(library, "ncclProfiler_v5");
    inner[6] = dlsym(library, "ncclProfiler_v6");
    inner[7] = dlsym(library, "ncclProfiler_v7");
    if (inner_v4 == NULL || inner[5] == NULL || inner[6] == NULL || inner[7] == NULL)
        abort();
    ncclProfiler_v4 = *inner_v4;
    ncclProfiler_v5 = *inner[5];
    ncclProfiler_v6 = *inner[6];
    ncclProfiler_v7 = *inner[7];
    ncclProfiler_v4.init = init_v4;
    ncclProfiler_v5.init = init_v5;
    ncclProfiler_v6.init = init_v6;
    ncclProfiler_v7.init = init_v7;
}
