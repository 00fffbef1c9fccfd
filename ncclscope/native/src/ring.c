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

/* --- time ---------------------------------------------------------------------------------- */

static uint64_t process_clock;
static pthread_once_t clock_once = PTHREAD_ONCE_INIT;

static uint64_t read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void read_process_clock(void)
{
    /* As clock.difference_ns(): of five samples, the shortest counts. */
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t before = read_clock(CLOCK_MONOTONIC);
        uint64_t host = read_clock(CLOCK_REALTIME);
        uint64_t after = read_clock(CLOCK_MONOTONIC);
        if (after - before < shortest) {
            shortest = after - before;
            process_clock = host - (before + (after - before) / 2);
        }
    }
}

uint64_t ns_clock(void)
{
    pthread_once(&clock_once, read_process_clock);
    return process_clock;
}

uint64_t ns_now(const ns_ring *ring)
{
    return read_clock(CLOCK_MONOTONIC) + (ring ? ring->clock : ns_clock());
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static const uint64_t most = ((uint64_t)1 << 62) - 1;

/* --- checks -------------------------------------------------------------------------------- */

/* As layout.FACTORS. */
static const uint64_t factors[12] = {
    0xF4B0BF2BEC31C3C5, 0x20CB422372699E39, 0x97589B0FE3B7FF85, 0xCDA49E49041F8DA3,
    0x114F6E4CDC478947, 0xDCD330BEF31A7C39, 0xB458B3A40CC8F329, 0xF330002EC698E72F,
    0xDE498A165B23033D, 0x51E6CF165F5883A1, 0x8FCB3C68960D9AE3, 0x2FEADF1E1DE92951,
};

/* The sum of four words from the `at`th on; four such multiplications do not wait for each other. */
static inline uint64_t sum(const uint64_t *words, int at)
{
    return (words[at] * factors[at] + words[at + 1] * factors[at + 1])
           + (words[at + 2] * factors[at + 2] + words[at + 3] * factors[at + 3]);
}

/* The check of a record, as layout.check(); the words need not be without state and check. */
static inline uint32_t check_record(const uint64_t words[12])
{
    const uint64_t moment = words[10] & ~(uint64_t)0 >> 8, end = (uint32_t)words[11];
    uint64_t rest = (words[8] * factors[8] + words[9] * factors[9])
                    + (moment * factors[10] + end * factors[11]);
    return (uint32_t)((sum(words, 0) + sum(words, 4) + rest) >> 32);
}

/* Compute the check of a record in the file anew, as one of its fields has been changed. */
static void seal(unsigned char *record)
{
    uint64_t words[12];
    memcpy(words, record, sizeof words);
    ns_put32(record + 92, check_record(words));
}

/* Store an entry of the table or the marks; `last` is its u32 before the check. */
static void store_entry(unsigned char *to, uint64_t begin, uint64_t seq, uint64_t hash, uint32_t last)
{
    uint64_t words[4] = {begin, seq, hash, last};
    words[3] |= sum(words, 0) >> 32 << 32;
    ns_publish64(to, 0);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(to + 8, words + 1, 24);
    ns_publish64(to, begin);
}

/* --- a record ------------------------------------------------------------------------------ */

/* As layout.STATES. */
static const unsigned char states[] = {0x0F, 0x33, 0x55};
enum { STATES = sizeof states };

static inline uint64_t word(const void *from, size_t at)
{
    uint64_t value;
    memcpy(&value, (const unsigned char *)from + at, sizeof value);
    return value;
}

/* Store the next record of a ring whose lock is held, and return its position. If the process dies
 * in between, its two ends differ: the first store marks it as begun, the last one as whole. */
static uint64_t store(ns_ring *ring, uint32_t comm, uint64_t hash, uint64_t seq, const void *fixed,
                      uint64_t moment)
{
    uint64_t position = ring->position++, begin = position + 1, words[12];
    if (ring->detached)
        return position;
    unsigned char *to = ring->records + position % ring->capacity * NS_RECORD;
    words[0] = begin;
    /* Under the lock, so that times are in the order of the records. */
    words[1] = read_clock(CLOCK_MONOTONIC) + ring->clock;
    words[2] = hash;
    words[3] = seq;
#pragma GCC unroll 6 /* a loop would go through memory, which costs as much as the check */
    for (size_t at = 0; at < 6; at++)
        words[4 + at] = word(fixed, 8 * at);
    words[7] = (words[7] & ~(uint64_t)0xFFFF) | comm;
    words[10] = moment;
    words[11] = (uint32_t)begin;
    words[11] |= (uint64_t)check_record(words) << 32;
    ns_publish64(to, begin);
    __atomic_thread_fence(__ATOMIC_RELEASE);
#pragma GCC unroll 10
    for (size_t at = 1; at < 11; at++)
        ns_put64(to + 8 * at, words[at]);
    ns_publish64(to + 88, words[11]);
    ns_publish64(ring->file + NS_COUNT, begin);
    ns_publish64(ring->file + NS_COUNT + 8, ~begin);
    return position;
}

static uint64_t moment_of(uint32_t graph, uint64_t group, unsigned flags, unsigned state)
{
    uint64_t number = group ? (group - 1) % 0xFFFF + 1 : 0;
    uint64_t spelled = states[state < STATES ? state : 0];
    return graph | number << 32 | (uint64_t)(flags & 0xFF) << 48 | spelled << 56;
}

/* --- table and marks -------------------------------------------------------------------------- */

static void store_heartbeat_locked(ns_ring *ring)
{
    if (!ring->detached)
        ns_put_word(ring, NS_HEARTBEAT, ns_now(ring));
}

void ns_write_channel(ns_ring *ring, uint64_t half, const ns_channel *channel)
{
    uint64_t entry = half * NS_MAX_COMMS + channel->index - 1;
    store_entry(ring->file + ring->geometry.table + entry * NS_ENTRY, ring->position + 1,
                channel->seq, channel->hash, (uint32_t)channel->p2p);
}

static void write_table_locked(ns_ring *ring)
{
    if (ring->detached)
        return;
    ring->tables++;
    ring->tabled = ring->position;
    store_heartbeat_locked(ring);
    for (uint32_t at = 0; at < ring->channel_count; at++)
        ns_write_channel(ring, ring->tables % 2, &ring->channels[at]->channel);
}

static void mark_locked(ns_ring *ring, const ns_channel *channel, uint64_t position, uint64_t seq,
                        uint64_t hash)
{
    if (ring->detached || !channel->index)
        return;
    uint64_t place = ring->marked++ % ring->geometry.marks;
    store_entry(ring->file + ring->geometry.mark_area + place * NS_ENTRY, position + 1, seq, hash,
                channel->index);
}

static void table_if_due(ns_ring *ring)
{
    if (ring->position & ring->table_mask)
        return;
    write_table_locked(ring);
    ns_room_records(ring);
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
    pthread_mutex_lock(&ring->lock);
    uint64_t seq = ++channel->seq;
    channel->hash = channel->hash * base + signature;
    uint64_t position = store(ring, channel->index, channel->hash, seq, fixed, moment);
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
    uint64_t moment = moment_of(graph, group, flags, state);
    pthread_mutex_lock(&ring->lock);
    uint64_t seq = ++channel->p2p;
    uint64_t position = store(ring, channel->index, channel->hash, seq, fixed, moment);
    table_if_due(ring);
    pthread_mutex_unlock(&ring->lock);
    return (int64_t)position;
}

int64_t ns_post_step(ns_ring *ring, uint64_t number, uint64_t held, bool dummy)
{
    ns_call call = {.numel = held, .ndim = 255, .root = -1};
    call.fixed = (uint8_t)(NS_FIXED_STEP | (dummy ? NS_FIXED_DUMMY : 0));
    pthread_mutex_lock(&ring->lock);
    uint64_t position = store(ring, 0, 0, least(number, most), &call, moment_of(0, 0, 0, 0));
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
    int64_t first = -1;
    pthread_mutex_lock(&ring->lock);
    for (size_t at = 0; at < count; at++) {
        const ns_part *part = &parts[at];
        ns_channel *channel = part->channel;
        uint64_t seq = channel->seq, hash = channel->hash, moment;
        unsigned char fixed[NS_FIXED];
        ns_put64(fixed, replay);
        memcpy(fixed + 8, part->repeats, NS_FIXED - 8);
        memcpy(&moment, part->repeats + NS_FIXED - 8, sizeof moment);
        channel->seq += part->count;
        channel->hash = hash * part->powers[part->count] + part->hashes[part->count];
        uint64_t position =
            store(ring, channel->index, channel->hash, channel->seq, fixed, moment);
        if (first < 0)
            first = (int64_t)position;
        mark_replay(ring, part, position, seq, hash);
        table_if_due(ring);
    }
    pthread_mutex_unlock(&ring->lock);
    return first;
}

void ns_store_activity(ns_ring *ring, uint32_t offset, uint32_t name, uint64_t turn, uint64_t since,
                       uint64_t until, uint64_t number, uint32_t detail)
{
    uint64_t words[6] = {turn, since, until, number, name | (uint64_t)detail << 32, (uint32_t)turn};
    words[5] |= (sum(words, 0) + words[4] * factors[4] + words[5] * factors[5]) >> 32 << 32;
    if (ring->detached)
        return;
    /* The mirror first: if the process dies in between, one of the two is whole. */
    for (unsigned char *page = ring->file + NS_MIRROR;; page = ring->file) {
        unsigned char *to = page + offset;
        ns_publish64(to, words[0]);
        __atomic_thread_fence(__ATOMIC_RELEASE);
        memcpy(to + 8, words + 1, 32);
        ns_publish64(to + 40, words[5]);
        if (page == ring->file)
            return;
    }
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
    unsigned char *record = state < STATES ? kept(ring, position) : NULL;
    if (record)
        record[87] = states[state];
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
    if (record && channel->index && get(record + 56, 2) == channel->index
        && (uint64_t)position >= ring->tabled) {
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
        if (done) {
            record[63] = NS_FIXED_STEP | NS_FIXED_UNSENT;
            seal(record);
        }
    }
    pthread_mutex_unlock(&ring->lock);
    return done;
}

void ns_set_peer(ns_ring *ring, int64_t position, int32_t peer)
{
    pthread_mutex_lock(&ring->lock);
    unsigned char *record = kept(ring, position);
    if (record) {
        ns_put32(record + 64, (uint32_t)peer);
        seal(record);
    }
    pthread_mutex_unlock(&ring->lock);
}

void ns_write_table(ns_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    write_table_locked(ring);
    pthread_mutex_unlock(&ring->lock);
}

void ns_store_heartbeat(ns_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    store_heartbeat_locked(ring);
    pthread_mutex_unlock(&ring->lock);
}

void ns_finish(ns_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    write_table_locked(ring); /* with a heartbeat */
    if (!ring->detached)
        ns_put_word(ring, NS_EXITED, ns_now(ring));
    pthread_mutex_unlock(&ring->lock);
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
    uint64_t index = ns_index(channel);
    if (index && !ring->detached)
        ns_publish64(ring->file + ring->geometry.carried + (index - 1) * NS_CARRIED,
                     (uint32_t)count | (uint64_t)~(uint32_t)count << 32);
}
