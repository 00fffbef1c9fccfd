/* The core by itself, for sanitizers: threads on one ring, forks while a lock is held, wraps,
 * full sections, a full file system's answer. Equality with the writer in Python is held by
 * tests/unit/test_native_writer.py. */
#define _GNU_SOURCE
#include "ring.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CAPACITY = 1024, THREADS = 4, CALLS = 20000 };

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                       \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static char directory[] = "/tmp/ncclscope-ring-test-XXXXXX";

static ns_ring *new_ring(void)
{
    char reason[NS_REASON];
    ns_ring *ring = ns_ring_create(directory, CAPACITY, reason);
    CHECK(ring);
    CHECK(ns_describe(ring, "{}", 2));
    ns_ring_publish(ring);
    return ring;
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
    unlink(ns_ring_path(ring));
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
    unlink(ns_ring_path(ring));
}

static void sections_fill(void)
{
    ns_ring *ring = new_ring();
    char text[500];
    int made = 0;
    memset(text, 'x', sizeof text);
    for (int number = 0; number < 2000; number++) {
        snprintf(text, 9, "%08d", number);
        text[8] = 'x';
        made += ns_text(ring, NS_OP, text, sizeof text) != 0;
    }
    CHECK(made > 100 && made < 2000);
    int channels = 0;
    ns_ring *other = new_ring();
    while (channels < 600 && new_channel(other, channels))
        channels++;
    CHECK(channels == NS_MAX_COMMS);
    CHECK(!ns_describe(ring, text, 1 << 20));
    unlink(ns_ring_path(ring));
    unlink(ns_ring_path(other));
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

static void no_place_is_an_answer(void)
{
    char reason[NS_REASON] = "";
    setenv("TMPDIR", "/proc/nowhere", 1);
    CHECK(!ns_ring_create("/proc/nowhere/at/all", CAPACITY, reason));
    CHECK(reason[0]);
    unsetenv("TMPDIR");
}

int main(void)
{
    CHECK(mkdtemp(directory));
    threads_share_a_ring();
    children_write_nothing();
    sections_fill();
    announcements_nest();
    no_place_is_an_answer();
    rmdir(directory);
    return 0;
}
