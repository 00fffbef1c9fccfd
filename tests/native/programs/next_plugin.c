/* A profiler plugin that was configured before ours. It checks that every handle it receives is one
 * that it gave, and writes what it saw to the file that NEXT_PLUGIN_LOG names.
 *
 * NEXT_PLUGIN_MASK is the mask it asks for, NEXT_PLUGIN_FAILS=1 makes its init() fail. VERSION is
 * the only version of the interface that it has. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profiler_abi.h"

#ifndef VERSION
#define VERSION 5
#endif

enum { MAGIC = 0x6e657874, TYPES = 16 };

struct handle {
    int magic;
    uint64_t type;
};

static struct handle contexts;
static atomic_int started[TYPES], stopped, states, finalized, bad;
static int *own_mask;

static int place_of(uint64_t type)
{
    return type == 0 || type >= 1 << TYPES ? TYPES - 1 : __builtin_ctzll(type);
}

static bool is_own(const void *handle)
{
    const struct handle *own = handle;
    return own != NULL && own->magic == MAGIC;
}

static void report(void)
{
    const char *path = getenv("NEXT_PLUGIN_LOG");
    FILE *log = path == NULL ? NULL : fopen(path, "w");
    if (log == NULL)
        return;
    for (int type = 0; type < TYPES; type++)
        fprintf(log, "%d ", atomic_load(&started[type]));
    fprintf(log, "stopped %d states %d finalized %d bad %d mask %d\n", atomic_load(&stopped),
            atomic_load(&states), atomic_load(&finalized), atomic_load(&bad), *own_mask);
    fclose(log);
}

static int begin(void **context, int *mask)
{
    static atomic_bool registered;
    const char *wanted = getenv("NEXT_PLUGIN_MASK"), *fails = getenv("NEXT_PLUGIN_FAILS");
    if (fails != NULL && *fails == '1')
        return 3;
    contexts.magic = MAGIC;
    *context = &contexts;
    *mask = wanted == NULL ? NP_COLL | NP_P2P : (int)strtol(wanted, NULL, 0);
    own_mask = mask;
    if (!atomic_exchange(&registered, true))
        atexit(report);
    return 0;
}

static int start(void *context, void **handle, uint64_t type, const void *parent)
{
    struct handle *made = calloc(1, sizeof *made);
    made->magic = MAGIC;
    made->type = type;
    if (!is_own(context) || (parent != NULL && !is_own(parent)))
        atomic_fetch_add(&bad, 1);
    atomic_fetch_add(&started[place_of(type)], 1);
    *handle = made; /* never freed: a handle may be a parent long after it was stopped */
    return 0;
}

static int stop(void *handle)
{
    atomic_fetch_add(is_own(handle) ? &stopped : &bad, 1);
    return 0;
}

static int state(void *handle, int to, void *arguments)
{
    (void)to, (void)arguments;
    atomic_fetch_add(is_own(handle) ? &states : &bad, 1);
    return 0;
}

static int finalize(void *context)
{
    atomic_fetch_add(is_own(context) ? &finalized : &bad, 1);
    return 0;
}

#if VERSION == 4
static int init(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
                int rank, np_logger *log)
{
    (void)name, (void)hash, (void)nodes, (void)ranks, (void)rank, (void)log;
    return begin(context, mask);
}

static int start_event(void *context, void **handle, struct np_event_v4 *event)
{
    return start(context, handle, event->type, event->parent);
}

struct np_profiler_v4 ncclProfiler_v4 = {"next", init, start_event, stop, state, finalize};
#else
static int init(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks,
                int rank, np_logger *log)
{
    (void)name, (void)hash, (void)nodes, (void)ranks, (void)rank, (void)log;
    return begin(context, mask);
}

static int start_event(void *context, void **handle, struct np_event *event)
{
    return start(context, handle, event->type, event->parent);
}

#define JOINED(a, b) a##b
#define TABLE(version) JOINED(ncclProfiler_v, version)
struct np_profiler TABLE(VERSION) = {"next", init, start_event, stop, state, finalize};
#endif
