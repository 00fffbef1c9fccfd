/* The core by itself, for sanitizers: threads on one ring, forks while a lock is held, wraps,
 * full sections, a full file system's answer. Equality with the writer in Python is held by
 * tests/unit/test_native_writer.py. */
#define _GNU_SOURCE
#include "verify.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { CAPACITY = 1024, THREADS = 4, CALLS = 20000 };

static char directory[] = "/tmp/ncclscope-ring-test-XXXXXX";

static ns_ring *new_ring(void)
{
    return new_ring_in(directory, CAPACITY);
}

/* Check the file of a ring, and remove it. */
static void settle(ns_ring *ring)
{
    ring_file file = verify(ns_ring_path(ring));
    verify_entries(&file);
    release(&file);
    unlink(ns_ring_path(ring));
}

static ns_channel *new_channel(ns_ring *ring, int number)
{
    char json[64];
    int length = snprintf(json, sizeof json, "{\"key\":\"k%d\",\"ranks\":[0]}", number);
    return ns_channel_open(ring, json, (size_t)length, 1);
}

static void *post_many(void *channel)
{
    ns_channel *own = channel;
    for (int number = 0; number < CALLS; number++) {
        char text[32];
        int length = snprintf(text, sizeof text, "site %d", number % 100);
        int64_t sizes[] = {number % 1000, 2, 3};
        ns_call call = {.numel = (uint64_t)number, .ndim = 255, .root = -1};
        call.comm = (uint16_t)own->index;
        call.site = ns_text(own->ring, NS_SITE, text, (size_t)length);
        call.sizes = ns_sizes(own->ring, sizes, 3);
        int64_t position = ns_post(own, &call, (uint64_t)number * 2 + 1, 0, 0, 0, 0);
        ns_advance(own->ring, position, 2);
        if (number % 16 == 0)
            ns_post_p2p(own, &call, 0, 0, 1, 0);
        ns_carried(own);
        ns_store_heartbeat(own->ring);
    }
    return NULL;
}

static void threads_share_a_ring(void)
{
    ns_ring *ring = new_ring();
    ns_channel *shared = new_channel(ring, 0);
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++)
        CHECK(!pthread_create(&threads[at], NULL, post_many, shared));
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    CHECK(shared->seq == THREADS * CALLS);
    CHECK(shared->p2p == THREADS * (CALLS / 16));
    CHECK(ns_ring_position(ring) == THREADS * (CALLS + CALLS / 16));
    ns_finish(ring);
    settle(ring);
}

/* After a fork only one thread is left, of which ThreadSanitizer knows nothing. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:leave_to_parent\nthread:children_write_nothing\n";
}

/* A child whose parent's threads held the lock at any moment can go on, and writes nothing. */
static void children_write_nothing(void)
{
    ns_ring *ring = new_ring();
    ns_channel *channel = new_channel(ring, 0);
    pthread_t thread;
    ns_set_current(ring);
    CHECK(!pthread_create(&thread, NULL, post_many, channel));
    for (int at = 0; at < 40; at++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            ns_call call = {.ndim = 255, .root = -1};
            if (ns_current())
                _exit(2);
            ns_post(channel, &call, 1, 0, 0, 0, 0);
            ns_finish(ring);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    pthread_join(thread, NULL);
    CHECK(channel->seq == CALLS);
    ns_set_current(NULL);
    settle(ring);
}

/* Write texts of a kind until there is no room; returns the bytes that they take. */
static uint64_t fill(ns_ring *ring, enum ns_kind kind)
{
    char text[504];
    uint64_t before = ns_strings_used(ring);
    memset(text, 'x', sizeof text);
    for (int number = 0;; number++) {
        snprintf(text, 9, "%08u", (unsigned)number % 100000);
        text[8] = 'x';
        if (!ns_text(ring, kind, text, sizeof text))
            return ns_strings_used(ring) - before;
        CHECK(number < 10000);
    }
}

static void sections_fill(void)
{
    ns_ring *ring = new_ring();
    CHECK(fill(ring, NS_SHAPE) == 32 * PAGE && fill(ring, NS_SITE) == 48 * PAGE);
    CHECK(ns_sites_used(ring) == 48 * PAGE);
    CHECK(fill(ring, NS_OP) == (256 - 80) * PAGE && ns_strings_used(ring) == 256 * PAGE);
    CHECK(ns_text(ring, NS_OP, "00000000", 8) == 0);
    ns_channel *channel = new_channel(ring, 0);
    CHECK(ns_index(channel) == 0);
    CHECK(!ns_text(ring, NS_COMM, "{}", 2) && !ns_text(ring, NS_COMM_UPDATE, "{}", 2));
    CHECK(!ns_describe(ring, "", 1 << 20));
    settle(ring);
}

/* Changing a record later keeps its check right. */
static void changed_records_are_whole(void)
{
    ns_ring *ring = new_ring();
    ns_channel *channel = new_channel(ring, 0);
    ns_call call = {.numel = UINT64_MAX, .shape = {1, 2, 3, 4}, .comm = 99, .op = 1, .ndim = 4, .root = -1,
                    .sizes = 5, .site = 6, .out = 7, .fixed = NS_FIXED_P2P};
    for (unsigned state = 0; state < 5; state++)
        ns_advance(ring, ns_post_p2p(channel, &call, 0, 0, 70000, 8), state);
    ns_set_peer(ring, 1, 3);
    CHECK(ns_withdraw(channel, 4));
    call.fixed = 0;
    ns_post(channel, &call, 5, 1, NS_CAPTURED, 0, 9);
    CHECK(ns_withdraw(channel, ns_post(channel, &call, 5, 2, NS_REPLAYED, 0, 9)));
    ns_post_step(ring, 5, 6, true);
    ring_file file = verify(ns_ring_path(ring));
    static const unsigned char states[] = {0x0F, 0x33, 0x55, 0x0F, 0x0F, 0x33, 0x55, 0x0F};
    for (uint64_t at = 0; at < 8; at++)
        CHECK(record_at(&file, at)[87] == states[at]);
    CHECK(get_word(record_at(&file, 0) + 56, 2) == 1 && get_word(record_at(&file, 7) + 56, 2) == 0);
    CHECK(get_word(record_at(&file, 0) + 84, 2) == 4465 && get_word(record_at(&file, 1) + 64, 4) == 3);
    CHECK(record_at(&file, 4)[63] == (NS_FIXED_STEP | NS_FIXED_UNSENT) && channel->p2p == 4);
    CHECK(channel->seq == 1 && channel->hash == (5 * 0x9E3779B97F4A7C15 | 1));
    release(&file);
    unlink(ns_ring_path(ring));
}

/* A call that a table counts is not withdrawn, although tables become rarer as the ring grows. */
static void tables_keep_their_calls(void)
{
    ns_ring *ring = new_ring_in(directory, 8 * CAPACITY);
    ns_channel *one = new_channel(ring, 0), *other = new_channel(ring, 1);
    ns_call call = {.ndim = 255, .root = -1};
    for (int at = 0; at < 600; at++)
        ns_post(other, &call, 1, 0, 0, 0, 0);
    int64_t counted = ns_post(one, &call, 1, 0, 0, 0, 0);
    while (ns_post(other, &call, 1, 0, 0, 0, 0) < 800) /* it grows at the table at 768 */
        continue;
    CHECK(!ns_withdraw(one, counted));
    CHECK(ns_withdraw(one, ns_post(one, &call, 1, 0, 0, 0, 0)) && one->seq == 1);
    settle(ring);
}

static void replays_are_whole(void)
{
    enum { COUNT = 1500 };
    ns_ring *ring = new_ring();
    uint64_t powers[COUNT + 1] = {1}, hashes[COUNT + 1] = {0};
    for (int at = 0; at < COUNT; at++) {
        powers[at + 1] = powers[at] * 0x3A8F05C5;
        hashes[at + 1] = hashes[at] * 0x3A8F05C5 + 7;
    }
    ns_part part = {.channel = new_channel(ring, 0), .count = COUNT, .powers = powers, .hashes = hashes};
    part.repeats[55 - 32] = NS_FIXED_REPLAY;
    part.repeats[47] = 0x33; /* as the file spells it */
    for (uint64_t replay = 1; replay <= 3000; replay++)
        ns_post_replay(ring, &part, 1, replay);
    ring_file file = verify(ns_ring_path(ring));
    CHECK(record_at(&file, 2999)[87] == 0x33 && get_word(record_at(&file, 2999) + 32, 8) == 3000);
    CHECK(part.channel->seq == 3000 * COUNT);
    verify_entries(&file);
    release(&file);
    unlink(ns_ring_path(ring));
}

/* Times run with CLOCK_MONOTONIC, from where the maker of the ring says. */
static void clock_is_the_makers(void)
{
    char path[] = "/tmp/ncclscope-clock-test-XXXXXX", reason[NS_REASON];
    const uint64_t clock = (uint64_t)1 << 61;
    ns_ring *ring = new_ring();
    ring_file file = verify(ns_ring_path(ring));
    int descriptor = mkstemp(path);
    CHECK(descriptor >= 0 && !ftruncate(descriptor, (off_t)file.size + 512 * 128)); /* a device part */
    release(&file);
    unlink(ns_ring_path(ring));
    ring = ns_ring_map(descriptor, CAPACITY, true, clock, reason);
    CHECK(ring);
    CHECK(ns_describe(ring, "{}", 2));
    uint64_t before = ns_now(ring);
    ns_store_heartbeat(ring);
    ns_post_step(ring, 1, 2, false);
    ns_finish(ring);
    ns_ring_publish(ring);
    file = verify(path);
    CHECK(get_word(file.data + 80, 8) == clock && before >= clock);
    CHECK(get_word(record_at(&file, 0) + 8, 8) >= before);
    CHECK(get_word(file.data + 136, 8) >= before && get_word(file.data + 144, 8) >= before);
    CHECK(get_word(file.data + 144, 8) <= ns_now(ring));
    release(&file);
    close(descriptor);
    unlink(path);
}

/* A list is the same as long as it is in the newer half of its part of the file. */
static void sizes_are_compared(void)
{
    ns_ring *ring = new_ring();
    const int64_t sizes[] = {4, 3}, others[] = {3, 4};
    ns_call call = {.sizes = ns_sizes(ring, sizes, 2)};
    uint32_t place = ns_place_of_sizes(&call);
    CHECK(place == call.sizes);
    CHECK(ns_same_sizes(ring, place, sizes, 2));
    CHECK(!ns_same_sizes(ring, place, others, 2));
    CHECK(!ns_same_sizes(ring, place, sizes, 1));
    CHECK(!ns_same_sizes(ring, UINT32_MAX, sizes, 2));
    for (int64_t number = 0; ns_holds(ring, place); number++)
        ns_sizes(ring, (int64_t[]){number, 1}, 2);
    CHECK(!ns_same_sizes(ring, place, sizes, 2));
    settle(ring);
}

/* Of an activity both copies are stored, and nothing by a process that has left the ring. */
static void activities_are_stored_twice(void)
{
    enum { MIRROR = 5 * 4096, OFFSET = 256 };
    ns_ring *ring = new_ring();
    ns_store_activity(ring, OFFSET, 7, 1, 2, 3, 4, 5);
    ns_detach(ring);
    ns_store_activity(ring, OFFSET, 7, 2, 2, 3, 4, 5);
    ring_file file = verify(ns_ring_path(ring));
    for (size_t at = OFFSET; at <= MIRROR + OFFSET; at += MIRROR) {
        CHECK(get_word(file.data + at, 8) == 1);
        CHECK(get_word(file.data + at + 24, 8) == 4);
        CHECK(get_word(file.data + at + 32, 4) == 7 && get_word(file.data + at + 36, 4) == 5);
        CHECK(get_word(file.data + at + 40, 4) == 1 && get_word(file.data + at + 44, 4));
    }
    release(&file);
    unlink(ns_ring_path(ring));
}

static void announcements_nest(void)
{
    ns_ring *ring = new_ring();
    ns_channel *one = new_channel(ring, 1), *other = new_channel(ring, 2), *found = NULL;
    CHECK(!ns_announced(&found));
    ns_announce(one);
    ns_announce(NULL);
    CHECK(ns_announced(&found) && !found);
    ns_announce(other);
    CHECK(ns_announced(&found) && found == other);
    for (int at = 0; at < 100; at++)
        ns_announce(one);
    for (int at = 0; at < 102; at++)
        ns_conclude();
    CHECK(ns_announced(&found) && found == one);
    ns_conclude();
    ns_conclude(); /* one too many */
    CHECK(!ns_announced(&found));
    unlink(ns_ring_path(ring));
}

/* Where a file may not be so large, the attempt would kill the process. */
static void no_place_is_an_answer(void)
{
    char reason[NS_REASON] = "";
    struct rlimit before, small;
    CHECK(!getrlimit(RLIMIT_FSIZE, &before));
    small = before;
    small.rlim_cur = 1 << 20;
    CHECK(!setrlimit(RLIMIT_FSIZE, &small));
    CHECK(!ns_ring_create(directory, CAPACITY, reason));
    CHECK(reason[0]);
    CHECK(!setrlimit(RLIMIT_FSIZE, &before));
}

int main(void)
{
    CHECK(mkdtemp(directory));
    threads_share_a_ring();
    children_write_nothing();
    sections_fill();
    tables_keep_their_calls();
    changed_records_are_whole();
    replays_are_whole();
    clock_is_the_makers();
    sizes_are_compared();
    activities_are_stored_twice();
    announcements_nest();
    no_place_is_an_answer();
    rmdir(directory);
    return 0;
}
