/* A stand-in for libnccl, as far as a profiler plugin can see it: it carries nothing out.
 *
 * It loads a plugin by the symbol of one version of the interface, and calls it in the order in
 * which NCCL 2.26 to 2.32 does, with that version's structs. Each line is one command; a word `C`
 * is a number from 0 to 4095 that the caller chooses for a communicator:
 *
 *     open PLUGIN VERSION                     load a plugin
 *     init C HASH NODES RANKS RANK [NAME]     make a communicator
 *     call C FUNC COUNT DTYPE ROOT [captured] a collective
 *     send C COUNT DTYPE PEER [captured]      and recv
 *     start, end                              ncclGroupStart() and ncclGroupEnd()
 *     mask NUMBER                             set the mask, as NCCL's RAS does
 *     final C                                 destroy a communicator
 *     close                                   unload the plugin
 *
 * stand_in() runs one line and returns the mask, or -1 for a line that it does not understand. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profiler_abi.h"

enum { COMMS = 16384, TASKS = 4096, FUNCTIONS = 16 };

static struct comm {
    void *context;
    int rank;
    uint64_t launched[FUNCTIONS];
} comms[COMMS];

static void *library;
static int version, mask, nccl = 22809;
static struct np_profiler *later;
static struct np_profiler_v4 *four;

/* What NCCL has, too, in each thread: the depth of groups and the calls of the open one. */
static _Thread_local int depth, profiled_depth;
static _Thread_local void *group_handle;
static _Thread_local struct task {
    struct comm *comm;
    const char *func, *dtype;
    size_t count;
    int peer, root;
    bool p2p, captured;
    void *api;
    int mask; /* when it was called, as in NCCL */
} tasks[TASKS];
static _Thread_local int task_count;

static void log_line(int level, unsigned long subsystems, const char *file, int line,
                     const char *format, ...)
{
    (void)subsystems, (void)file, (void)line;
    const char *wanted = getenv("NCCL_DEBUG");
    if (wanted == NULL || (level > NP_LOG_WARN && strcmp(wanted, "INFO") != 0))
        return;
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
}

int ncclGetVersion(int *out)
{
    *out = nccl;
    return 0;
}

static void start(struct comm *comm, void **handle, struct np_event *event)
{
    if (later != NULL)
        later->start(comm->context, handle, event);
}

static void start_v4(struct comm *comm, void **handle, struct np_event_v4 *event)
{
    if (four != NULL)
        four->start(comm->context, handle, event);
}

static void stop(void *handle)
{
    if (handle == NULL)
        return;
    if (later != NULL)
        later->stop(handle);
    else if (four != NULL)
        four->stop(handle);
}

static void state(void *handle, int to)
{
    if (handle != NULL && later != NULL)
        later->state(handle, to, NULL);
}

/* NCCL has one literal for each name, so that a plugin may keep the pointer. Without a lock, which a
 * fork might leave held in the child. */
static const char *literal(const char *name)
{
    static const char *known[64];
    for (int at = 0; at < 64; at++) {
        const char *held = __atomic_load_n(&known[at], __ATOMIC_ACQUIRE);
        if (held == NULL) {
            char *own = strdup(name);
            if (__atomic_compare_exchange_n(&known[at], &held, own, false, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE))
                return own;
            free(own);
        }
        if (strcmp(held, name) == 0)
            return held;
    }
    abort();
}

static int function_of(const char *name)
{
    static const char *const names[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast",
                                        "Reduce",    "AlltoAll",  "Gather",        "Scatter"};
    int at = 0;
    while (at < 8 && strcmp(names[at], name) != 0)
        at++;
    return at;
}

/* --- what happens when a program calls ------------------------------------------------------ */

static void api_group(struct task *task)
{
    if (mask == 0 || profiled_depth != 0 || later == NULL)
        return;
    struct np_event event = {.type = NP_GROUP_API};
    event.group_api.captured = task->captured;
    event.group_api.depth = depth;
    start(task->comm, &group_handle, &event);
    profiled_depth = depth;
    state(group_handle, 23);
}

static void api_call(struct task *task)
{
    if (later == NULL)
        return;
    int coll = NP_COLL_API | NP_COLL | NP_PROXY_OP | NP_PROXY_STEP | NP_KERNEL_CH | NP_NET_PLUGIN;
    int p2p = NP_P2P_API | NP_P2P | NP_PROXY_OP | NP_PROXY_STEP | NP_KERNEL_CH | NP_NET_PLUGIN;
    struct np_event event = {.type = task->p2p ? NP_P2P_API : NP_COLL_API, .parent = group_handle};
    if (task->p2p) {
        event.p2p_api = (struct np_p2p_api){task->func, task->count, task->dtype, NULL,
                                            task->captured};
    } else {
        event.coll_api = (struct np_coll_api){task->func, task->count, task->dtype, task->root,
                                              NULL,       task->captured};
    }
    if (mask & (task->p2p ? p2p : coll)) {
        start(task->comm, &task->api, &event);
        stop(task->api);
    }
}

static void launch(struct task *task, void *group)
{
    const int proxy = NP_PROXY_OP | NP_PROXY_STEP | NP_KERNEL_CH | NP_NET_PLUGIN;
    struct np_event event = {.type = task->p2p ? NP_P2P : NP_COLL, .parent = task->api,
                             .rank = task->comm->rank};
    void *handle = NULL;
    uint64_t number = 0;
    if (!task->p2p && !task->captured)
        number = task->comm->launched[function_of(task->func)]++;
    if (!(task->mask & ((task->p2p ? NP_P2P : NP_COLL) | proxy)))
        return;
    if (task->p2p)
        event.p2p = (struct np_p2p){task->func, NULL, task->dtype, task->count, task->peer, 1, group};
    else
        event.coll = (struct np_coll){number, task->func, NULL, NULL, task->count, task->root,
                                      task->dtype, 1, 1, "RING", "LL", group};
    if (later != NULL) {
        start(task->comm, &handle, &event);
    } else {
        struct np_event_v4 older = {.type = (uint8_t)event.type, .parent = group,
                                    .rank = event.rank};
        memcpy(older.words, event.words, sizeof older.words);
        start_v4(task->comm, &handle, &older);
    }
    stop(handle);
}

static void launch_all(void)
{
    const int wanted = NP_GROUP | NP_COLL | NP_P2P | NP_PROXY_OP | NP_PROXY_STEP | NP_KERNEL_CH |
                       NP_NET_PLUGIN;
    void *group = NULL;
    if (task_count > 0 && mask & wanted) {
        struct np_event event = {.type = NP_GROUP};
        struct np_event_v4 older = {.type = NP_GROUP};
        if (later != NULL)
            start(tasks[0].comm, &group, &event);
        else
            start_v4(tasks[0].comm, &group, &older);
    }
    for (int at = 0; at < task_count; at++)
        launch(&tasks[at], group);
    stop(group);
    task_count = 0;
}

static void group_start(void)
{
    depth++;
}

static void group_end(void)
{
    if (profiled_depth > 0 && --profiled_depth == 0)
        state(group_handle, 24);
    if (--depth > 0)
        return;
    launch_all();
    if (group_handle != NULL) {
        stop(group_handle);
        group_handle = NULL;
    }
}

static void call(struct task task)
{
    group_start();
    task.mask = __atomic_load_n(&mask, __ATOMIC_RELAXED);
    api_group(&task);
    api_call(&task);
    if (task_count < TASKS)
        tasks[task_count++] = task;
    group_end();
}

/* --- commands ---------------------------------------------------------------------------------- */

static int open_plugin(const char *path, int wanted)
{
    char symbol[32];
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", wanted);
    void *found = library == NULL ? NULL : dlsym(library, symbol);
    if (found == NULL) {
        fprintf(stderr, "stand-in for libnccl: %s: no %s\n", path, symbol);
        return -1;
    }
    version = wanted;
    later = wanted > 4 ? found : NULL;
    four = wanted > 4 ? NULL : found;
    nccl = wanted == 4 ? 22703 : wanted == 5 ? 22809 : wanted == 6 ? 23007 : 23203;
    return mask;
}

static int init(int at, unsigned long long hash, int nodes, int ranks, int rank, const char *name)
{
    comms[at].rank = rank;
    if (four != NULL)
        four->init(&comms[at].context, &mask, name, hash, nodes, ranks, rank, log_line);
    else if (later != NULL)
        later->init(&comms[at].context, hash, &mask, name, nodes, ranks, rank, log_line);
    return mask;
}

static int finalize(int at)
{
    if (comms[at].context != NULL && four != NULL)
        four->finalize(comms[at].context);
    else if (comms[at].context != NULL && later != NULL)
        later->finalize(comms[at].context);
    comms[at].context = NULL;
    return mask;
}

__attribute__((visibility("default"))) int stand_in(const char *line)
{
    char path[4096], first[64] = "", second[64] = "", third[64] = "";
    unsigned long long hash = 0, count = 0;
    int at = 0, a = 0, b = 0, c = 0;
    if (sscanf(line, "open %4095s %d", path, &a) == 2)
        return open_plugin(path, a);
    if (sscanf(line, "init %d %lli %d %d %d %63s", &at, (long long *)&hash, &a, &b, &c, first) >= 5)
        return init(at % COMMS, hash, a, b, c, first[0] ? first : NULL);
    if (sscanf(line, "call %d %63s %llu %63s %d %63s", &at, first, &count, second, &a, third) >= 5)
        call((struct task){&comms[at % COMMS], literal(first), literal(second), count, -1, a, false,
                           third[0] != 0, NULL, 0});
    else if (sscanf(line, "send %d %llu %63s %d %63s", &at, &count, first, &a, second) >= 4)
        call((struct task){&comms[at % COMMS], "Send", literal(first), count, a, 0, true,
                           second[0] != 0, NULL, 0});
    else if (sscanf(line, "recv %d %llu %63s %d %63s", &at, &count, first, &a, second) >= 4)
        call((struct task){&comms[at % COMMS], "Recv", literal(first), count, a, 0, true,
                           second[0] != 0, NULL, 0});
    else if (sscanf(line, "mask %i", &a) == 1)
        __atomic_store_n(&mask, a, __ATOMIC_RELAXED);
    else if (sscanf(line, "final %d", &at) == 1)
        return finalize(at % COMMS);
    else if (strncmp(line, "start", 5) == 0)
        group_start();
    else if (strncmp(line, "end", 3) == 0)
        group_end();
    else if (strncmp(line, "close", 5) == 0)
        return later = NULL, four = NULL, dlclose(library);
    else
        return -1;
    return mask;
}
