/* Turn NCCL's reports of calls into records, in the words that the other recorders use. */
#define _GNU_SOURCE
#include "profiler.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NO_SHAPE 255
#define NO_ROOM 255
#define TEMPLATES 32 /* a power of two */
#define TRANSFERS 16384
#define FIRST_GROUP 0x8000 /* numbers below are those of probes in the same ring */

/* What the members of a communicator agree in besides the operation, and what their input is. */
enum extent {
    EQUAL,    /* the input's elements are those that NCCL counts */
    PER_RANK, /* there is one such part for each member */
    SCATTERED, /* the root has one for each member, the others have an output only */
    TRANSFER,
    OTHER, /* an operation that is not known here: nothing but its name is compared */
};

struct function {
    const char *nccl, *op;
    enum extent extent;
    bool rooted;
};

static const struct function functions[] = {
    {"AllReduce", "all_reduce", EQUAL, false},
    {"AllGather", "all_gather", EQUAL, false},
    {"ReduceScatter", "reduce_scatter", PER_RANK, false},
    {"Broadcast", "broadcast", EQUAL, true},
    {"Reduce", "reduce", EQUAL, true},
    {"Send", "send", TRANSFER, false},
    {"Recv", "recv", TRANSFER, false},
    {"AlltoAll", "all_to_all", PER_RANK, false},
    {"Gather", "gather", EQUAL, true},
    {"Scatter", "scatter", SCATTERED, true},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static const struct {
    const char *nccl, *dtype;
} dtypes[] = {
    {"ncclFloat32", "float32"},       {"ncclBfloat16", "bfloat16"},
    {"ncclFloat16", "float16"},       {"ncclInt8", "int8"},
    {"ncclUint8", "uint8"},           {"ncclInt32", "int32"},
    {"ncclInt64", "int64"},           {"ncclFloat64", "float64"},
    {"ncclUint32", "uint32"},         {"ncclUint64", "uint64"},
    {"ncclFloat8e4m3", "float8_e4m3fn"}, {"ncclFloat8e5m2", "float8_e5m2"},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static int function_of(const char *name)
{
    for (int one = 0; one < FUNCTIONS; one++)
        if (strcmp(functions[one].nccl, name) == 0)
            return one;
    return -1;
}

/* Return the place of an element type; DTYPES for none, -1 for one that is not known. */
static int dtype_of(const char *name)
{
    if (name == NULL)
        return DTYPES;
    for (int one = 0; one < DTYPES; one++)
        if (strcmp(dtypes[one].nccl, name) == 0)
            return one;
    return -1;
}

static size_t times(size_t count, int ranks)
{
    size_t product;
    return __builtin_mul_overflow(count, (size_t)ranks, &product) ? SIZE_MAX : product;
}

/* --- the parameters of a call, packed and signed ----------------------------------------------- */

struct template {
    const ns_channel *channel;
    size_t count;
    int function, dtype, root;
    uint64_t signature;
    ns_call fixed;
};

static _Thread_local struct template templates[TEMPLATES];

static uint8_t small_text(ns_ring *ring, enum ns_kind kind, const char *text)
{
    if (text == NULL)
        return 0;
    uint32_t number = ns_text(ring, kind, text, strlen(text));
    return number == 0 || number >= NO_ROOM ? NO_ROOM : (uint8_t)number;
}

/* Write a name in lower case, of letters, digits and underscores only. */
static void plain_name(const char *name, char into[32])
{
    int at = 0;
    for (; at < 31 && name[at] != 0; at++) {
        char one = name[at];
        if (one >= 'A' && one <= 'Z')
            one = (char)(one - 'A' + 'a');
        bool plain = (one >= 'a' && one <= 'z') || (one >= '0' && one <= '9') || one == '_';
        into[at] = plain ? one : '_';
    }
    into[at] = 0;
}

struct call {
    const char *op, *dtype;
    enum extent extent;
    size_t count;
    int root, ranks, rank;
};

static size_t input_of(const struct call *call)
{
    switch (call->extent) {
    case PER_RANK:
        return times(call->count, call->ranks);
    case SCATTERED:
        return call->rank == call->root ? times(call->count, call->ranks) : 0;
    default:
        return call->count;
    }
}

static uint64_t pack(ns_channel *channel, const struct call *call, ns_call *fixed)
{
    char agreed[24] = "";
    size_t numel = input_of(call);
    size_t equal = call->extent == SCATTERED ? call->count : numel;
    if (call->extent != OTHER && equal > 0)
        snprintf(agreed, sizeof agreed, "%zu", equal);
    *fixed = (ns_call){
        .numel = numel,
        .comm = (uint16_t)ns_index(channel),
        .op = (uint16_t)ns_text(channel->ring, NS_OP, call->op, strlen(call->op)),
        .dtype = small_text(channel->ring, NS_DTYPE, call->dtype),
        .ndim = NO_SHAPE,
        .fixed = call->extent == TRANSFER ? NS_FIXED_P2P : 0,
        .root = call->root,
        .out = call->extent == SCATTERED
                   ? ns_text(channel->ring, NS_SHAPE, agreed, strlen(agreed))
                   : 0,
    };
    if (call->extent == TRANSFER)
        return 0;
    return ns_sign(call->op, call->dtype, NULL, call->root, agreed);
}

static struct template *place_of(const ns_channel *channel, int function, size_t count, int root)
{
    uint64_t mixed = (uint64_t)(uintptr_t)channel / sizeof *channel + (uint64_t)count * 31 +
                     (uint64_t)function * 7 + (uint64_t)(unsigned)root;
    return &templates[(mixed * 0x9e3779b97f4a7c15u) >> 59];
}

/* Return a call's parameters, packed before or now. A call of an unknown function or element type
 * is packed each time. */
static const struct template *packed(ns_comm *comm, ns_channel *channel, const char *func,
                                     size_t count, const char *dtype, int root)
{
    int function = function_of(func), type = dtype_of(dtype);
    bool known = function >= 0 && type >= 0, rooted = function < 0 || functions[function].rooted;
    bool transfer = function >= 0 && functions[function].extent == TRANSFER;
    root = root >= 0 && (rooted || transfer) ? root : -1;
    struct template *one = place_of(channel, function, count, root);
    if (known && one->channel == channel && one->function == function && one->dtype == type &&
        one->count == count && one->root == root)
        return one;
    char op_name[32], dtype_name[32];
    plain_name(func, op_name);
    if (type < 0)
        plain_name(dtype, dtype_name);
    struct call call = {
        .op = function < 0 ? op_name : functions[function].op,
        .dtype = type == DTYPES ? NULL : type < 0 ? dtype_name : dtypes[type].dtype,
        .extent = function < 0 ? OTHER : functions[function].extent,
        .count = count,
        .root = function < 0 ? -1 : root,
        .ranks = comm->ranks,
        .rank = comm->rank,
    };
    one->signature = pack(channel, &call, &one->fixed);
    one->channel = known ? channel : NULL;
    one->function = function;
    one->dtype = type;
    one->count = count;
    one->root = root;
    return one;
}

/* --- calls ------------------------------------------------------------------------------------- */

static _Thread_local uint64_t group;

void ns_group_entered(const struct np_group_api *entered)
{
    static _Atomic uint64_t groups = FIRST_GROUP;
    /* NCCL puts each call outside of groups into a group of its own, of depth 1. */
    group = entered->depth > 1 ? atomic_fetch_add_explicit(&groups, 1, memory_order_relaxed) : 0;
}

/* Note once that the replays of a captured call are not seen: NCCL reports it when it is captured. */
static void note_replays(ns_comm *comm, ns_channel *channel)
{
    if (atomic_exchange(&comm->replays, true))
        return;
    char json[64];
    int length = snprintf(json, sizeof json, "{\"comm\": %" PRIu32 ", \"replays_unseen\": true}",
                          ns_index(channel));
    ns_channel_update(channel, json, (size_t)length);
}

/* NCCL numbers the launches of a function on a communicator, from 0. The first that is reported is
 * that of the first recorded call, so that readers can number calls from the communicator's first. */
void ns_number(ns_comm *comm, const char *func, uint64_t number)
{
    int function = func == NULL || !comm->late ? -1 : function_of(func);
    if (function < 0 || !ns_rings_recording())
        return;
    uint32_t bit = (uint32_t)1 << function;
    ns_channel *channel = ns_comm_channel(comm);
    if (channel == NULL || atomic_fetch_or(&comm->numbered, bit) & bit)
        return;
    char json[128];
    int length = snprintf(json, sizeof json,
                          "{\"comm\": %" PRIu32 ", \"made_before\": {\"%s\": %" PRIu64 "}}",
                          ns_index(channel), functions[function].op, number);
    ns_channel_update(channel, json, (size_t)length);
}

void ns_collective(ns_comm *comm, const char *func, size_t count, const char *dtype, int root,
                   bool captured)
{
    ns_channel *channel = NULL;
    if (func == NULL)
        return;
    if (ns_announced(&channel)) {
        if (channel != NULL) {
            ns_comm_bind(comm, channel);
            ns_carried(channel);
        }
        return;
    }
    channel = ns_rings_recording() ? ns_comm_channel(comm) : NULL;
    if (channel == NULL)
        return;
    if (captured)
        note_replays(comm, channel);
    const struct template *call = packed(comm, channel, func, count, dtype, root);
    if (call->signature == 0)
        return; /* a send or receive, which this event does not report */
    ns_post(channel, &call->fixed, call->signature, 0, captured ? NS_CAPTURED : 0, group, 0);
    ns_carried(channel);
}

/* --- sends and receives ------------------------------------------------------------------------- */

/* Where the record of a send or receive is, until its launch gives the peer. There are more
 * of these than a group has calls; an older one is overwritten, and its peer stays unknown. */
static struct {
    _Atomic uint64_t number; /* 0 while the others are being stored */
    _Atomic(ns_ring *) ring;
    _Atomic int64_t position;
    _Atomic(void *) next;
} transfers[TRANSFERS];

static uint64_t remember(ns_ring *ring, int64_t position)
{
    static _Atomic uint64_t numbers;
    uint64_t number = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed) + 1;
    uint64_t place = number % TRANSFERS;
    atomic_store(&transfers[place].number, 0);
    atomic_store(&transfers[place].ring, ring);
    atomic_store(&transfers[place].position, position);
    atomic_store(&transfers[place].next, NULL);
    atomic_store(&transfers[place].number, number);
    return number;
}

uint64_t ns_transfer(ns_comm *comm, const char *func, size_t count, const char *dtype, int peer,
                     bool captured)
{
    ns_channel *channel = NULL;
    if (func == NULL)
        return 0;
    if (ns_announced(&channel)) {
        if (channel != NULL)
            ns_comm_bind(comm, channel);
        return 0;
    }
    channel = ns_rings_recording() ? ns_comm_channel(comm) : NULL;
    if (channel == NULL)
        return 0;
    if (captured)
        note_replays(comm, channel);
    const struct template *call = packed(comm, channel, func, count, dtype, peer);
    if (call->signature != 0)
        return 0;
    int64_t position =
        ns_post_p2p(channel, &call->fixed, 0, captured ? NS_CAPTURED : 0, group, 0);
    return position < 0 ? 0 : remember(channel->ring, position);
}

void ns_transfer_peer(uint64_t transfer, int peer)
{
    uint64_t place = transfer % TRANSFERS;
    if (transfer == 0 || peer < 0 || atomic_load(&transfers[place].number) != transfer)
        return;
    ns_ring *ring = atomic_load(&transfers[place].ring);
    int64_t position = atomic_load(&transfers[place].position);
    if (atomic_load(&transfers[place].number) == transfer)
        ns_set_peer(ring, position, peer);
}

void ns_transfer_keep(uint64_t transfer, void *next)
{
    uint64_t place = transfer % TRANSFERS;
    if (atomic_load(&transfers[place].number) == transfer)
        atomic_store(&transfers[place].next, next);
}

void *ns_transfer_next(uint64_t transfer)
{
    uint64_t place = transfer % TRANSFERS;
    void *next = atomic_load(&transfers[place].next);
    return atomic_load(&transfers[place].number) == transfer ? next : NULL;
}

void ns_calls_forget(void)
{
    group = 0;
    memset(templates, 0, sizeof templates);
    for (int place = 0; place < TRANSFERS; place++)
        atomic_store_explicit(&transfers[place].number, 0, memory_order_relaxed);
}
