/* The profiler plugin that was configured before ours: NCCL loads only one.
 *
 * NCCLSCOPE_NEXT_PROFILER names it, as NCCL_PROFILER_PLUGIN would; without it, there may be one that
 * NCCL loads by default. It receives what NCCL would send
 * it alone: the events of its own mask and their parents, in the highest version that it and NCCL
 * know. Its handles go through NCCL unchanged, except where we need one of our own. */
#define _GNU_SOURCE
#include "profiler.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define LONGEST 256
#define DEFAULT "libnccl-profiler.so"

static struct {
    bool tried;
    _Atomic int version; /* 0: there is none */
    const struct np_profiler *profiler;
    const struct np_profiler_v4 *profiler_v4;
    int mask; /* its own; it keeps the address, and may change it at any time */
} next;

bool ns_chain_exists(void)
{
    return atomic_load_explicit(&next.version, memory_order_acquire) != 0;
}

int ns_chain_mask(void)
{
    return __atomic_load_n(&next.mask, __ATOMIC_RELAXED);
}

/* --- loading ----------------------------------------------------------------------------------- */

static bool is_file_name(const char *name)
{
    size_t length = strlen(name);
    bool library = strncmp(name, "lib", 3) == 0 && length > 3 &&
                   strcmp(name + length - 3, ".so") == 0;
    return library || strchr(name, '/') != NULL;
}

/* Open a plugin by the rules of NCCL: a file, or NAME for libnccl-profiler-NAME.so. */
static void *open_plugin(const char *name)
{
    char file[LONGEST];
    if (strcasecmp(name, "STATIC_PLUGIN") == 0)
        return dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != NULL || is_file_name(name))
        return library;
    snprintf(file, sizeof file, "libnccl-profiler-%s.so", name);
    return dlopen(file, RTLD_NOW | RTLD_LOCAL);
}

static bool is_ours(const void *symbol)
{
    Dl_info theirs, ours;
    return dladdr(symbol, &theirs) != 0 && dladdr(&next, &ours) != 0 &&
           theirs.dli_fbase == ours.dli_fbase;
}

/* Find the highest version up to NCCL's; return the reason where there is none. */
static const char *find_version(void *library, int version)
{
    for (; version >= 4; version--) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
        void *found = dlsym(library, symbol);
        if (found == NULL)
            continue;
        if (is_ours(found))
            return "it is this plugin";
        if (version == 4)
            next.profiler_v4 = found;
        else
            next.profiler = found;
        atomic_store_explicit(&next.version, version, memory_order_release);
        return NULL;
    }
    return "it has no version from 4 on that this NCCL knows";
}

void ns_chain_open(int version, np_logger *log)
{
    const char *named = ns_variable("NEXT_PROFILER"), *name = *named ? named : DEFAULT;
    if (next.tried || strcasecmp(name, "none") == 0)
        return;
    next.tried = true;
    void *library = open_plugin(name);
    const char *reason = library == NULL ? dlerror() : find_version(library, version);
    if (reason == NULL || log == NULL || *named == 0)
        return;
    log(NP_LOG_WARN, NP_LOG_INIT, __FILE__, __LINE__, "ncclscope: profiler plugin %s is not used: %s",
        name, reason);
}

/* --- communicators ----------------------------------------------------------------------------- */

int ns_chain_init(ns_comm *comm, const char *name, int nodes, np_logger *log)
{
    int version = atomic_load_explicit(&next.version, memory_order_acquire);
    if (version == 0 || version > comm->version)
        return 0;
    int status = version == 4 ? next.profiler_v4->init(&comm->next, &next.mask, name, comm->hash,
                                                       nodes, comm->ranks, comm->rank, log)
                              : next.profiler->init(&comm->next, comm->hash, &next.mask, name,
                                                    nodes, comm->ranks, comm->rank, log);
    comm->chained = status == 0;
    return comm->chained ? ns_chain_mask() : 0;
}

void ns_chain_finalize(ns_comm *comm)
{
    if (!comm->chained || comm->next == NULL)
        return;
    comm->chained = false;
    if (next.version == 4)
        next.profiler_v4->finalize(comm->next);
    else
        next.profiler->finalize(comm->next);
}

/* --- events -------------------------------------------------------------------------------------- */

/* Whether NCCL would send events of a type to a plugin with this mask. An event is sent, too,
 * where one below it in the hierarchy is asked for. */
static bool is_sent(int mask, uint64_t type)
{
    const int net = NP_NET_PLUGIN, step = NP_PROXY_STEP | net, op = NP_PROXY_OP | step;
    const int below = op | NP_KERNEL_CH | NP_KERNEL_PHASE;
    const int ce = NP_CE_COLL | NP_CE_SYNC | NP_CE_BATCH;
    switch (type) {
    case NP_GROUP:
        return mask & (NP_GROUP | NP_COLL | NP_P2P | below);
    case NP_COLL:
        return mask & (NP_COLL | below);
    case NP_P2P:
        return mask & (NP_P2P | below);
    case NP_PROXY_OP:
        return mask & op;
    case NP_PROXY_STEP:
        return mask & step;
    case NP_KERNEL_CH:
        return mask & (NP_KERNEL_CH | NP_KERNEL_PHASE);
    case NP_GROUP_API:
        return mask & (NP_GROUP_API | NP_COLL_API | NP_P2P_API | NP_KERNEL_LAUNCH | NP_GROUP |
                       NP_COLL | NP_P2P | below | ce);
    case NP_COLL_API:
        return mask & (NP_COLL_API | NP_COLL | below | ce);
    case NP_P2P_API:
        return mask & (NP_P2P_API | NP_P2P | below);
    case NP_CE_COLL:
        return mask & ce;
    default:
        return (uint64_t)mask & type;
    }
}

/* Whether a version has events of a type. */
static bool is_known(int version, uint64_t type)
{
    static const uint64_t first_unknown[] = {[4] = NP_GROUP_API, [5] = NP_CE_COLL,
                                             [6] = NP_KERNEL_PHASE, [7] = UINT64_MAX};
    return type < first_unknown[version];
}

/* Send an event of a later version to a plugin of version 4. There, the parent of a launched call
 * is the group. */
static void *start_v4(const ns_comm *comm, const struct np_event *event)
{
    struct np_event_v4 older = {.type = (uint8_t)event->type, .parent = event->parent,
                                .rank = event->rank};
    void *handle = NULL;
    memcpy(older.words, event->words, sizeof older.words);
    if (event->type == NP_COLL)
        older.parent = event->coll.group;
    else if (event->type == NP_P2P)
        older.parent = event->p2p.group;
    next.profiler_v4->start(comm->next, &handle, &older);
    return handle;
}

void *ns_chain_start(const ns_comm *comm, uint64_t type, const void *event, void *parent)
{
    int version = next.version;
    void *handle = NULL;
    if (!is_known(version, type) || !is_sent(ns_chain_mask(), type))
        return NULL;
    if (comm->version == 4) {
        next.profiler_v4->start(comm->next, &handle, (struct np_event_v4 *)event);
        return handle;
    }
    if (version == 4)
        return start_v4(comm, event);
    /* The parent is in NCCL's own memory, and only while the event is passed on may it be
     * the next plugin's handle instead of ours. */
    struct np_event *passed = (struct np_event *)event;
    void *before = passed->parent;
    if (before != parent)
        passed->parent = parent;
    next.profiler->start(comm->next, &handle, passed);
    if (before != parent)
        passed->parent = before;
    return handle;
}

void ns_chain_stop(void *handle)
{
    int version = atomic_load_explicit(&next.version, memory_order_acquire);
    if (handle == NULL || version == 0)
        return;
    if (version == 4)
        next.profiler_v4->stop(handle);
    else
        next.profiler->stop(handle);
}

void ns_chain_state(void *handle, int state, void *arguments)
{
    static const int first_unknown[] = {[4] = NP_STATE_GROUP_API, [5] = NP_STATE_CE,
                                        [6] = NP_STATE_KERNEL_PHASE, [7] = INT32_MAX};
    int version = atomic_load_explicit(&next.version, memory_order_acquire);
    if (handle == NULL || version == 0 || state >= first_unknown[version])
        return;
    if (version == 4)
        next.profiler_v4->state(handle, state, arguments);
    else
        next.profiler->state(handle, state, arguments);
}
