#define _GNU_SOURCE /* clock_gettime under -std=c11 */
#include "inside.h"
#include "sign.h"

#include <stdlib.h>
#include <time.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "a ring is little-endian, and this file stores numbers as they are"
#endif

static const uint64_t base = 0x3A8F05C5;
static const uint64_t captured = 0x9E3779B97F4A7C15;
static const uint64_t replayed = 0xB7E151628AED2A6B;

uint64_t ns_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static const uint64_t most = ((uint64_t)1 << 62) - 1;

/* --- a record ------------------------------------------------------------------------------ */

/* Store the next record of a ring whose lock is held. If the process dies in between, its two
 * ends differ: the first store marks it as begun, the last one as whole. */
static void store(ns_ring *ring, uint64_t now, uint64_t hash, uint64_t seq, const void *fixed,
                  const void *moment)
{
    uint64_t position = ring->position++;
    unsigned char *to = ring->records + position % ring->capacity * NS_RECORD;
    if (ring->detached)
        return;
    ns_publish64(to, position + 1);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    ns_put64(to + 8, now);
    ns_put64(to + 16, hash);
    ns_put64(to + 24, seq);
    memcpy(to + 32, fixed, NS_FIXED);
    memcpy(to + 80, moment, 8);
    ns_publish64(to + 88, position + 1);
}

static uint64_t moment_of(uint32_t graph, uint64_t group, unsigned flags, unsigned state)
{
    uint64_t number = group ? (group - 1) % 0xFFFF + 1 : 0;
    return graph | number << 32 | (uint64_t)(flags & 0xFF) << 48 | (uint64_t)(state & 0xFF) << 56;
}

static void write_table_locked(ns_ring *ring)
{
    if (ring->detached)
        return;
    ring->tables++;
    ns_store_heartbeat(ring);
    unsigned char *half =
        ring->file + ring->geometry.table + ring->tables % 2 * NS_MAX_COMMS * NS_ENTRY;
    uint64_t begin = ring->position + 1;
    for (uint32_t at = 0; at < ring->channel_count; at++) {
        const ns_channel *channel = ring->channels[at];
        unsigned char *entry = half + (uint64_t)at * NS_ENTRY;
        ns_put32(entry + 28, 0);
        ns_publish64(entry, begin);
        ns_put64(entry + 8, channel->seq);
        ns_put64(entry + 16, channel->hash);
        ns_put32(entry + 24, (uint32_t)channel->p2p);
        __atomic_store_n((uint32_t *)(void *)(entry + 28), (uint32_t)begin, __ATOMIC_RELEASE);
    }
}

static void mark_locked(ns_ring *ring, const ns_channel *channel, uint64_t position, uint64_t seq,
                        uint64_t hash)
{
    if (ring->detached)
        return;
    uint64_t place = ring->marked++ % ring->geometry.marks;
    unsigned char *to = ring->file + ring->geometry.mark_area + place * NS_ENTRY;
    uint64_t begin = position + 1;
    ns_put32(to + 28, 0);
    ns_publish64(to, begin);
    ns_put64(to + 8, seq);
    ns_put64(to + 16, hash);
    ns_put32(to + 24, channel->index);
    __atomic_store_n((uint32_t *)(void *)(to + 28), (uint32_t)begin, __ATOMIC_RELEASE);
}

static void table_if_due(ns_ring *ring)
{
    if (!(ring->position & ring->table_mask))
        write_table_locked(ring);
}

/* --- calls ------------------------------------------------------------------------------- */

int64_t ns_post(ns_channel *channel, const void *fixed, uint64_t signature, unsigned state,
                unsigned flags, uint64_t group, uint32_t graph)
{
    ns_ring *ring = channel->ring;
    uint64_t moment = moment_of(graph, group, flags, state);
    if (flags & NS_CAPTURED)
        signature = signature * captured | 1;
    else if (flags & NS_REPLAYED)
        signature = signature * replayed | 1;
    uint64_t now = ns_now();
    pthread_mutex_lock(&ring->lock);
    uint64_t position = ring->position, seq = ++channel->seq;
    channel->hash = channel->hash * base + signature;
    store(ring, now, channel->hash, seq, fixed, &moment);
    if (!(seq % NS_MARK_EVERY))
        mark_locked(ring, channel, position, seq, channel->hash);
    table_if_due(ring);
    pthread_mutex_unlock(&ring->lock);
    return (int64_t)position;
}

int64_t ns_post_p2p(ns_channel *channel, const void *fixed, unsigned state, unsigned flags,
                    uint64_t group, uint32_t graph)
{
    ns_ring *ring = channel->ring;
    uint64_t moment = moment_of(graph, group, flags, state), now = ns_now();
    pthread_mutex_lock(&ring->lock);
    uint64_t position = ring->position;
    store(ring, now, channel->hash, ++channel->p2p, fixed, &moment);
    table_if_due(ring);
    pthread_mutex_unlock(&ring->lock);
    return (int64_t)position;
}

int64_t ns_post_step(ns_ring *ring, uint64_t number, uint64_t held, bool dummy)
{
    ns_call call = {.numel = held, .ndim = 255, .root = -1};
    uint64_t moment = 0, now = ns_now();
    call.fixed = (uint8_t)(NS_FIXED_STEP | (dummy ? NS_FIXED_DUMMY : 0));
    pthread_mutex_lock(&ring->lock);
    uint64_t position = ring->position;
    store(ring, now, 0, least(number, most), &call, &moment);
    table_if_due(ring);
    pthread_mutex_unlock(&ring->lock);
    return (int64_t)position;
}

/* Marks within a replay: its calls have no records of their own. */
static void mark_replay(ns_ring *ring, const ns_part *part, uint64_t position, uint64_t seq,
                        uint64_t hash)
{
    uint64_t end = seq + part->count;
    for (uint64_t at = (seq | (NS_MARK_EVERY - 1)) + 1; at <= end; at += NS_MARK_EVERY) {
        uint64_t count = at - seq;
        uint64_t running = hash * part->powers[count] + part->hashes[count];
        mark_locked(ring, part->channel, position, at, running);
    }
}

int64_t ns_post_replay(ns_ring *ring, const ns_part *parts, size_t count, uint64_t replay)
{
    uint64_t now = ns_now();
    int64_t first = -1;
    pthread_mutex_lock(&ring->lock);
    for (size_t at = 0; at < count; at++) {
        const ns_part *part = &parts[at];
        ns_channel *channel = part->channel;
        uint64_t position = ring->position, seq = channel->seq, hash = channel->hash;
        unsigned char fixed[NS_FIXED];
        ns_put64(fixed, replay);
        memcpy(fixed + 8, part->repeats, NS_FIXED - 8);
        channel->seq += part->count;
        channel->hash = hash * part->powers[part->count] + part->hashes[part->count];
        store(ring, now, channel->hash, channel->seq, fixed, part->repeats + NS_FIXED - 8);
        if (first < 0)
            first = (int64_t)position;
        mark_replay(ring, part, position, seq, hash);
        table_if_due(ring);
    }
    pthread_mutex_unlock(&ring->lock);
    return first;
}

/* Return a record of a ring whose lock is held; NULL if it has been overwritten. */
static unsigned char *kept(ns_ring *ring, int64_t position)
{
    if (position < 0 || ring->detached || ring->position <= (uint64_t)position
        || ring->position - (uint64_t)position > ring->capacity)
        return NULL;
    return ring->records + (uint64_t)position % ring->capacity * NS_RECORD;
}

void ns_advance(ns_ring *ring, int64_t position, unsigned state)
{
    pthread_mutex_lock(&ring->lock);
    unsigned char *record = kept(ring, position);
    if (record)
        record[87] = (unsigned char)state;
    pthread_mutex_unlock(&ring->lock);
}

static uint64_t get(const unsigned char *from, size_t size)
{
    uint64_t value = 0;
    memcpy(&value, from, size); /* the format and all machines that this runs on are little-endian */
    return value;
}

/* Find the running hash before a collective; false if the record of the call before it is lost. */
static bool hash_before(ns_ring *ring, const ns_channel *channel, uint64_t position, uint64_t *hash)
{
    const unsigned special = NS_FIXED_P2P | NS_FIXED_STEP;
    *hash = 0;
    if (channel->seq == 1)
        return true;
    for (uint64_t at = position; at-- > 0;) {
        const unsigned char *record = kept(ring, (int64_t)at);
        if (!record)
            return false;
        if (get(record + 56, 2) == channel->index && !(record[63] & special)) {
            *hash = get(record + 16, 8);
            return get(record + 24, 8) == channel->seq - 1;
        }
    }
    return false;
}

bool ns_withdraw(ns_channel *channel, int64_t position)
{
    ns_ring *ring = channel->ring;
    bool done = false;
    uint64_t hash;
    pthread_mutex_lock(&ring->lock);
    unsigned char *record = kept(ring, position);
    /* A table or a mark that counts the call stays, and so does the call then. */
    if (record && get(record + 56, 2) == channel->index
        && !(((uint64_t)position ^ ring->position) & ~ring->table_mask)) {
        uint64_t seq = get(record + 24, 8);
        if (record[63] & NS_FIXED_P2P) {
            if ((done = seq == channel->p2p))
                channel->p2p--;
        } else if (!(record[63] & (NS_FIXED_STEP | NS_FIXED_REPLAY)) && seq == channel->seq
                   && seq % NS_MARK_EVERY && hash_before(ring, channel, (uint64_t)position, &hash)) {
            channel->seq--;
            channel->hash = hash;
            done = true;
        }
        if (done)
            record[63] = NS_FIXED_STEP | NS_FIXED_UNSENT;
    }
    pthread_mutex_unlock(&ring->lock);
    return done;
}

void ns_set_peer(ns_ring *ring, int64_t position, int32_t peer)
{
    pthread_mutex_lock(&ring->lock);
    unsigned char *record = kept(ring, position);
    if (record)
        ns_put32(record + 64, (uint32_t)peer);
    pthread_mutex_unlock(&ring->lock);
}

void ns_write_table(ns_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    write_table_locked(ring);
    pthread_mutex_unlock(&ring->lock);
}

/* --- communicators ------------------------------------------------------------------------- */

ns_channel *ns_channel_open(ns_ring *ring, const char *json, size_t length, uint32_t members)
{
    ns_channel *channel = calloc(1, sizeof *channel);
    if (!channel)
        return NULL;
    channel->ring = ring;
    channel->members = members;
    channel->index = 1;
    pthread_mutex_lock(&ring->lock);
    if (!ring->detached) {
        uint32_t number = ring->channel_count < NS_MAX_COMMS
                              ? ns_text_locked(ring, NS_COMM, json, length)
                              : 0;
        if (number != ring->channel_count + 1) {
            pthread_mutex_unlock(&ring->lock);
            free(channel);
            return NULL;
        }
        channel->index = number;
        ring->channels[ring->channel_count++] = channel;
        write_table_locked(ring);
    }
    pthread_mutex_unlock(&ring->lock);
    return channel;
}

void ns_channel_update(ns_channel *channel, const char *json, size_t length)
{
    ns_text(channel->ring, NS_COMM_UPDATE, json, length);
}

/* --- what a probe and the plugin say to each other -------------------------------------------- */

enum { DEEPEST = 16 };

static _Thread_local struct {
    unsigned depth;
    ns_channel *channels[DEEPEST];
    bool counted[DEEPEST];
} open_calls;

void ns_announce(ns_channel *channel)
{
    if (open_calls.depth < DEEPEST) {
        open_calls.channels[open_calls.depth] = channel;
        open_calls.counted[open_calls.depth] = false;
    }
    open_calls.depth++;
}

void ns_conclude(void)
{
    if (open_calls.depth)
        open_calls.depth--;
}

bool ns_announced(ns_channel **channel)
{
    unsigned depth = open_calls.depth;
    if (!depth)
        return false;
    *channel = open_calls.channels[depth <= DEEPEST ? depth - 1 : DEEPEST - 1];
    return true;
}

/* Whether this is a further call of an announced one, which is one record. */
static bool is_counted(const ns_channel *channel)
{
    unsigned at = open_calls.depth - 1;
    if (!open_calls.depth || at >= DEEPEST || open_calls.channels[at] != channel)
        return false;
    bool before = open_calls.counted[at];
    open_calls.counted[at] = true;
    return before;
}

void ns_carried(ns_channel *channel)
{
    ns_ring *ring = channel->ring;
    if (is_counted(channel))
        return;
    uint64_t count = __atomic_add_fetch(&channel->carried, 1, __ATOMIC_RELAXED);
    if (!ring->detached)
        __atomic_store_n(
            (uint32_t *)(void *)(ring->file + NS_CARRIED + 4 * (uint64_t)(channel->index - 1)),
            (uint32_t)count, __ATOMIC_RELAXED);
}
