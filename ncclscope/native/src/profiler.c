/* The NCCL profiler plugin: records each call that any program makes through NCCL.
 *
 * libnccl loads it where NCCL_PROFILER_PLUGIN names it. NCCL reports a call twice: when the program
 * makes it (collApi, p2pApi) and when its kernel is launched (coll, p2p). The first report has the
 * program's order and parameters, so it is what is recorded; from the second comes the peer of a
 * send or receive. Neither has the reduction, the shape or the call site.
 *
 * Where a Python probe has just recorded the same call, it says so (ns_announce), and no second
 * record is made. Otherwise the call is recorded on the channel of the probe that records other
 * calls of this communicator, or on one of our own.
 *
 * NCCL's callbacks must neither fail nor wait. A communicator is named by a number, not by a
 * pointer, so that a callback for one that has ended does nothing. */
#define _GNU_SOURCE
#include "profiler.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* A handle of ours: no address of a 64-bit process has these upper bits. */
#define TRANSFER_TAG ((uint64_t)0x4e54 << 48)
#define TAG_BITS ((uint64_t)0xffff << 48)

static void *handle_of(uint64_t transfer)
{
    return (void *)(uintptr_t)(TRANSFER_TAG | (transfer & ~TAG_BITS));
}

/* Return the number of a send or receive that a handle names; 0 if it is not ours. */
static uint64_t transfer_of(const void *handle)
{
    uint64_t value = (uint64_t)(uintptr_t)handle;
    return (value & TAG_BITS) == TRANSFER_TAG ? value & ~TAG_BITS : 0;
}

static void name_comm(ns_comm *comm, const char *name)
{
    size_t length = name == NULL ? 0 : strnlen(name, NS_NAME - 1);
    if (length > 0)
        memcpy(comm->name, name, length);
    comm->name[length] = 0;
}

static bool is_comparable(const ns_comm *comm, int nodes)
{
    if (comm->ranks < 1 || comm->rank < 0 || comm->rank >= comm->ranks)
        return false;
    /* Version 4 reports launches. With proxies, those of a captured call are reported at each
     * replay, and only on some of the ranks. */
    return comm->version > 4 || nodes <= 1;
}

static int start_comm(int version, void **context, uint64_t hash, int *mask, const char *name,
                      int nodes, int ranks, int rank, np_logger *log)
{
    void *unused;
    context = context == NULL ? &unused : context;
    *context = NULL;
    pthread_mutex_lock(&ns_lock);
    enum ns_mode mode = ns_rings_mode();
    ns_chain_open(version, log);
    ns_comm *comm = mode != NS_OFF || ns_chain_exists() ? ns_comm_new(context) : NULL;
    int wanted = 0;
    if (comm != NULL) {
        comm->hash = hash;
        comm->ranks = ranks;
        comm->rank = rank;
        comm->version = version;
        comm->late = false;
        name_comm(comm, name);
        comm->records = mode != NS_OFF && is_comparable(comm, nodes);
        if (mask != NULL)
            ns_rings_watch(mask);
        if (comm->records && (mode == NS_ON || ns_rings_armed()))
            wanted = version > 4 ? NS_MASK : NS_MASK_V4;
        comm->late = comm->records && !wanted;
        if (wanted)
            ns_rings_choose(comm);
        ns_comm_publish(comm, *context);
    }
    pthread_mutex_unlock(&ns_lock);
    if (comm != NULL && wanted && ns_rings_own(comm->ring))
        ns_comm_channel(comm); /* a rank that then calls nothing has left a trace */
    wanted |= comm == NULL ? 0 : ns_chain_init(comm, name, nodes, log);
    if (mask != NULL)
        __atomic_store_n(mask, wanted, __ATOMIC_RELAXED); /* NCCL's threads read it at any time */
    return 0;
}

/* Record what an event of version 5 or later says; return the number of a send or receive. */
static uint64_t observe(ns_comm *comm, const struct np_event *event)
{
    switch (event->type) {
    case NP_GROUP_API:
        ns_group_entered(&event->group_api);
        return 0;
    case NP_COLL_API:
        ns_collective(comm, event->coll_api.func, event->coll_api.count, event->coll_api.dtype,
                      event->coll_api.root, event->coll_api.captured);
        return 0;
    case NP_COLL:
        ns_number(comm, event->coll.func, event->coll.number);
        return 0;
    case NP_P2P_API:
        return ns_transfer(comm, event->p2p_api.func, event->p2p_api.count, event->p2p_api.dtype,
                           -1, event->p2p_api.captured);
    case NP_P2P:
        ns_transfer_peer(transfer_of(event->parent), event->p2p.peer);
        return 0;
    default:
        return 0;
    }
}

static void observe_v4(ns_comm *comm, const struct np_event_v4 *event)
{
    if (event->type == NP_COLL) {
        const struct np_coll *coll = (const void *)event->words;
        ns_collective(comm, coll->func, coll->count, coll->dtype, coll->root, false);
        ns_number(comm, coll->func, coll->number);
    } else if (event->type == NP_P2P) {
        const struct np_p2p *p2p = (const void *)event->words;
        ns_transfer(comm, p2p->func, p2p->count, p2p->dtype, p2p->peer, false);
    }
}

static int start(void *context, void **handle, struct np_event *event)
{
    void *unused;
    handle = handle == NULL ? &unused : handle;
    *handle = NULL; /* NCCL keeps the handle of an earlier event here */
    ns_comm *comm = ns_comm_of(context);
    if (comm == NULL || event == NULL || comm->version == 4)
        return 0;
    uint64_t transfer = comm->records ? observe(comm, event) : 0;
    if (comm->chained) {
        uint64_t parent = transfer_of(event->parent);
        *handle = ns_chain_start(comm, event->type, event,
                                 parent ? ns_transfer_next(parent) : event->parent);
        if (transfer)
            ns_transfer_keep(transfer, *handle);
    }
    if (transfer)
        *handle = handle_of(transfer);
    return 0;
}

static int start_v4(void *context, void **handle, struct np_event_v4 *event)
{
    void *unused;
    handle = handle == NULL ? &unused : handle;
    *handle = NULL;
    ns_comm *comm = ns_comm_of(context);
    if (comm == NULL || event == NULL || comm->version != 4)
        return 0;
    if (comm->records)
        observe_v4(comm, event);
    if (comm->chained)
        *handle = ns_chain_start(comm, event->type, event, event->parent);
    return 0;
}

static int stop(void *handle)
{
    if (handle == NULL)
        return 0;
    uint64_t transfer = transfer_of(handle);
    ns_chain_stop(transfer ? ns_transfer_next(transfer) : handle);
    return 0;
}

static int state(void *handle, int to, void *arguments)
{
    if (handle == NULL)
        return 0;
    uint64_t transfer = transfer_of(handle);
    ns_chain_state(transfer ? ns_transfer_next(transfer) : handle, to, arguments);
    return 0;
}

static int finalize(void *context)
{
    ns_comm *comm = ns_comm_of(context);
    if (comm == NULL)
        return 0;
    ns_chain_finalize(comm);
    ns_comm_close(comm);
    pthread_mutex_lock(&ns_lock);
    ns_comm_retire(comm);
    pthread_mutex_unlock(&ns_lock);
    return 0;
}

/* --- one table for each version -------------------------------------------------------------- */

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes,
                   int ranks, int rank, np_logger *log)
{
    return start_comm(4, context, hash, mask, name, nodes, ranks, rank, log);
}

static int init_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes,
                   int ranks, int rank, np_logger *log)
{
    return start_comm(5, context, hash, mask, name, nodes, ranks, rank, log);
}

static int init_v6(void **context, uint64_t hash, int *mask, const char *name, int nodes,
                   int ranks, int rank, np_logger *log)
{
    return start_comm(6, context, hash, mask, name, nodes, ranks, rank, log);
}

static int init_v7(void **context, uint64_t hash, int *mask, const char *name, int nodes,
                   int ranks, int rank, np_logger *log)
{
    return start_comm(7, context, hash, mask, name, nodes, ranks, rank, log);
}

EXPORT struct np_profiler_v4 ncclProfiler_v4 = {"ncclscope", init_v4, start_v4,
                                                stop,        state,   finalize};
EXPORT struct np_profiler ncclProfiler_v5 = {"ncclscope", init_v5, start, stop, state, finalize};
EXPORT struct np_profiler ncclProfiler_v6 = {"ncclscope", init_v6, start, stop, state, finalize};
EXPORT struct np_profiler ncclProfiler_v7 = {"ncclscope", init_v7, start, stop, state, finalize};
