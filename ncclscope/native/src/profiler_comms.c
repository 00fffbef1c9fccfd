/* The communicators that NCCL has reported, and the channel on which each one's calls are recorded. */
#define _GNU_SOURCE
#include "profiler.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A context is a tag, the serial number of the communicator, and its place in the table. */
#define COMM_TAG ((uint64_t)0x4e43)
#define MOST_COMMS 65536
#define SERIALS ((uint64_t)0xffffffff)
#define JSON 512
#define LISTED 1024 /* a communicator with more members gives a range, as layout.py says */

pthread_mutex_t ns_lock = PTHREAD_MUTEX_INITIALIZER;

static _Atomic(ns_comm *) comms[MOST_COMMS];
static unsigned used, next_free; /* places that were ever used; where the search for one starts */
static uint64_t serials;

static unsigned free_place(void)
{
    for (unsigned tried = 0; tried < used; tried++) {
        unsigned place = (next_free + tried) % used;
        if (atomic_load_explicit(&comms[place]->serial, memory_order_relaxed) == 0) {
            next_free = place + 1; /* so that a place rests before it is used again */
            return place;
        }
    }
    return used;
}

ns_comm *ns_comm_new(void **context)
{
    /* Growing by halves bounds the search, and keeps late callbacks from finding another one. */
    static unsigned living_limit = 64;
    unsigned place = used < living_limit ? used : free_place();
    if (place == used) {
        if (used == MOST_COMMS)
            return NULL;
        ns_comm *made = calloc(1, sizeof *made);
        if (made == NULL)
            return NULL;
        atomic_store_explicit(&comms[place], made, memory_order_release);
        used++;
        if (used > living_limit)
            living_limit = used + used / 2 < MOST_COMMS ? used + used / 2 : MOST_COMMS;
    }
    ns_comm *comm = comms[place];
    comm->ring = NULL;
    comm->next = NULL;
    comm->chained = comm->records = false;
    atomic_store(&comm->bound, NULL);
    atomic_store(&comm->own, NULL);
    atomic_store(&comm->full, false);
    atomic_store(&comm->replays, false);
    atomic_store(&comm->numbered, 0);
    serials = serials % SERIALS + 1;
    *context = (void *)(uintptr_t)(COMM_TAG << 48 | serials << 16 | place);
    return comm;
}

ns_comm *ns_comm_of(void *context)
{
    uint64_t value = (uint64_t)(uintptr_t)context;
    if (value >> 48 != COMM_TAG)
        return NULL;
    ns_comm *comm = atomic_load_explicit(&comms[value % MOST_COMMS], memory_order_acquire);
    if (comm == NULL)
        return NULL;
    uint64_t serial = atomic_load_explicit(&comm->serial, memory_order_acquire);
    return serial == (value >> 16 & SERIALS) ? comm : NULL;
}

void ns_comm_publish(ns_comm *comm, void *context)
{
    uint64_t value = (uint64_t)(uintptr_t)context;
    atomic_store_explicit(&comm->serial, value >> 16 & SERIALS, memory_order_release);
}

void ns_comm_retire(ns_comm *comm)
{
    atomic_store_explicit(&comm->serial, 0, memory_order_release);
}

void ns_comms_forget(void)
{
    for (unsigned place = 0; place < used; place++)
        ns_comm_retire(comms[place]);
}

bool ns_comm_shares(const ns_comm *comm, const ns_ring *ring)
{
    for (unsigned place = 0; place < used; place++) {
        const ns_comm *other = comms[place];
        if (other != comm && atomic_load(&other->serial) != 0 && other->ring == ring &&
            other->hash == comm->hash && other->rank != comm->rank)
            return true;
    }
    return false;
}

/* --- channels -------------------------------------------------------------------------------- */

/* Write a text as a JSON string without its quotes; names are ASCII or are cut short. */
static void quote(const char *text, char *into, size_t room)
{
    size_t at = 0;
    for (; *text != 0 && at + 2 < room; text++) {
        unsigned char one = (unsigned char)*text;
        if (one == '"' || one == '\\')
            into[at++] = '\\';
        into[at++] = one < 0x20 || one > 0x7e ? '?' : (char)one;
    }
    into[at] = 0;
}

static size_t members_json(const ns_comm *comm, char *into, size_t room)
{
    if (ns_rings_world(comm) == 0)
        return (size_t)snprintf(into, room, "\"ranks\": []");
    if (comm->ranks > LISTED)
        return (size_t)snprintf(into, room, "\"range\": [0, %d, 1]", comm->ranks);
    size_t at = (size_t)snprintf(into, room, "\"ranks\": [0");
    for (int rank = 1; rank < comm->ranks; rank++)
        at += (size_t)snprintf(into + at, room - at, ", %d", rank);
    into[at++] = ']';
    into[at] = 0;
    return at;
}

static ns_channel *open_channel(ns_comm *comm)
{
    char name[2 * NS_NAME], members[16 + 6 * LISTED], json[JSON + sizeof members];
    quote(comm->name[0] ? comm->name : "nccl", name, sizeof name);
    members_json(comm, members, sizeof members);
    /* comm_rank and size are what a reader joins the members by, where their ranks are unknown. */
    int length = snprintf(json, sizeof json,
                          "{\"key\": \"nccl:%016" PRIx64 "\", \"label\": \"%s\", %s, "
                          "\"backend\": \"nccl\", \"comm_hash\": \"0x%" PRIx64 "\", "
                          "\"comm_rank\": %d, \"size\": %d%s}",
                          comm->hash, name, members, comm->hash, comm->rank, comm->ranks,
                          comm->late ? ", \"joined_late\": true" : "");
    return ns_channel_open(comm->ring, json, (size_t)length, (uint32_t)comm->ranks);
}

/* Open our channel, in a ring of the era. Calls do not come here, except for the first one. */
static ns_channel *find_channel(ns_comm *comm)
{
    pthread_mutex_lock(&ns_lock);
    uint64_t era = ns_rings_era();
    if (comm->era != era || comm->ring == NULL) {
        atomic_store(&comm->own, NULL);
        atomic_store(&comm->numbered, 0);
        comm->ring = NULL;
        ns_rings_choose(comm);
    }
    ns_channel *own = atomic_load(&comm->own);
    if (own == NULL && comm->ring != NULL) {
        own = open_channel(comm);
        if (own != NULL && ns_index(own) == 0)
            own = NULL;
        atomic_store(&comm->own, own);
    }
    if (own == NULL) {
        atomic_store(&comm->full, true);
        ns_rings_note_full(comm->ring);
    }
    pthread_mutex_unlock(&ns_lock);
    return own;
}

ns_channel *ns_comm_channel(ns_comm *comm)
{
    ns_channel *bound = atomic_load_explicit(&comm->bound, memory_order_acquire);
    if (bound != NULL)
        return bound;
    ns_channel *own = atomic_load_explicit(&comm->own, memory_order_acquire);
    if (own != NULL && comm->era == ns_rings_era())
        return own;
    return atomic_load(&comm->full) ? NULL : find_channel(comm);
}

void ns_comm_bind(ns_comm *comm, ns_channel *channel)
{
    /* A probe's call may run on another communicator than its channel's: torch makes one of two
     * members for each pair that sends and receives. */
    if (atomic_load_explicit(&comm->bound, memory_order_acquire) == channel ||
        channel->members != (uint32_t)comm->ranks)
        return;
    atomic_store_explicit(&comm->bound, channel, memory_order_release);
    char json[160];
    int length = snprintf(json, sizeof json,
                          "{\"comm\": %" PRIu32 ", \"comm_hash\": \"0x%" PRIx64 "\", "
                          "\"comm_rank\": %d, \"size\": %d}",
                          ns_index(channel), comm->hash, comm->rank, comm->ranks);
    ns_channel_update(channel, json, (size_t)length);
}

void ns_comm_close(ns_comm *comm)
{
    ns_channel *own = atomic_load(&comm->own);
    if (own == NULL || comm->era != ns_rings_era())
        return;
    char json[96];
    int length = snprintf(json, sizeof json, "{\"comm\": %" PRIu32 ", \"closed_ns\": %" PRIu64 "}",
                          ns_index(own), ns_now(own->ring));
    ns_channel_update(own, json, (size_t)length);
    ns_channel_close(own); /* a probe closes its own */
}
