/* Communicators that come and go: their numbers, their texts, and what is left of earlier ones. */
#define _GNU_SOURCE
#include "verify.h"

#include <pthread.h>
#include <time.h>

enum { CAPACITY = 1024, REUSED_FROM = 512, KIND_COMM = 1, KIND_UPDATE = 7, THREADS = 4 };

#ifdef __SANITIZE_THREAD__ /* it takes ten times as long */
enum { COME_AND_GO = 20000 };
#else
enum { COME_AND_GO = 100000 };
#endif

static char directory[] = "/tmp/ncclscope-comm-test-XXXXXX";

static ns_channel *open_one(ns_ring *ring, int number, int bytes)
{
    char json[512];
    int length = snprintf(json, sizeof json, "{\"key\": \"k%d\", \"label\": \"%0*d\"}", number, bytes, 0);
    ns_channel *channel = ns_channel_open(ring, json, (size_t)length, 1);
    CHECK(channel);
    return channel;
}

static void update(ns_channel *channel, const char *name, int bytes)
{
    char json[512];
    int length = snprintf(json, sizeof json, "{\"comm\": %u, \"%s\": \"%0*d\"}", ns_index(channel), name,
                          bytes, 0);
    ns_channel_update(channel, json, (size_t)length);
}

static int64_t post(ns_channel *channel)
{
    ns_call call = {.numel = 1, .ndim = 255, .root = -1, .comm = (uint16_t)ns_index(channel)};
    return ns_post(channel, &call, 3, 0, 0, 0, 0);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void open_many(ns_ring *ring, ns_channel **channels, int count)
{
    for (int at = 0; at < count; at++) {
        channels[at] = open_one(ring, at, 1);
        CHECK(ns_index(channels[at]) == (uint32_t)at + 1);
    }
}

static void numbers_are_reused(void)
{
    ns_ring *ring = new_ring_in(directory, CAPACITY);
    ns_channel *all[REUSED_FROM];
    open_many(ring, all, 8);
    ns_channel_close(all[0]);
    ns_channel_close(all[0]);
    all[8] = open_one(ring, 8, 1);
    CHECK(ns_index(all[8]) == 9); /* not yet */
    for (int at = 9; at < REUSED_FROM; at++)
        all[at] = open_one(ring, at, at == 20 ? 200 : 1);
    ns_channel_close(all[2]);
    ns_channel_reopen(all[2]);
    ns_channel_reopen(all[2]);
    update(all[5], "gone", 1);
    update(all[5], "long", 100);
    post(all[5]);
    ns_carried(all[5]);
    ns_channel_close(all[3]);
    ns_channel_close(all[5]);
    ns_channel_close(all[20]);
    ns_channel_close(all[20]);
    uint64_t used = ns_strings_used(ring);
    CHECK(ns_index(open_one(ring, 1001, 1)) == 1); /* the first that was closed */
    CHECK(ns_index(open_one(ring, 1002, 200)) == 21); /* only there is room for its text */
    CHECK(ns_index(open_one(ring, 1003, 200)) == REUSED_FROM + 1);
    CHECK(ns_strings_used(ring) > used);
    ns_channel *next = open_one(ring, 1004, 1), *other = open_one(ring, 1005, 1);
    CHECK(ns_index(next) == 4 && ns_index(other) == 6);
    CHECK(ns_index(open_one(ring, 1006, 1)) == REUSED_FROM + 2); /* each only once */
    ns_channel_close(all[7]);
    CHECK(ns_index(open_one(ring, 1007, 1)) == 8);
    CHECK(ns_index(all[5]) == 0);
    ns_channel_close(all[5]);
    update(all[5], "late", 1);
    ns_carried(all[5]);
    post(all[5]); /* is of no communicator, as it is not of its number's */
    post(other);
    CHECK(all[5]->seq == 2 && other->seq == 1);
    CHECK(ns_withdraw(other, 2) && !ns_withdraw(all[5], 1));
    post(other);
    update(other, "own", 1);

    ring_file file = verify(ns_ring_path(ring));
    CHECK(verify_entries(&file) > REUSED_FROM && file.reused == 5);
    CHECK(ns_index(all[2]) == 3 && ns_index(all[5]) == 0);
    text its = text_of(&file, KIND_COMM, 6);
    CHECK(says(its, "{\"key\": \"k1005\", \"label\": \"0\", \"since\": 1} "));
    CHECK(its.length % 64 == 0 && its.data[its.length - 1] == ' ');
    CHECK(!says(text_of(&file, KIND_COMM, 7), "since"));
    CHECK(says(text_of(&file, KIND_UPDATE, 1), "\"own\"")); /* in the place of an earlier one */
    CHECK(!memcmp(text_of(&file, KIND_UPDATE, 2).data, "{}   ", 5));
    for (int half = 0; half < 2; half++) {
        const unsigned char *entry = table_entry(&file, half, 6);
        CHECK(get_word(entry, 8) == 2 && !get_word(entry + 8, 8) && !get_word(entry + 16, 8));
    }
    CHECK(!get_word(file.data + file.carried + 8 * 5, 8));
    CHECK(get_word(record_at(&file, 0) + 56, 2) == 6 && get_word(record_at(&file, 1) + 56, 2) == 0);
    CHECK(get_word(record_at(&file, 3) + 56, 2) == 6 && get_word(record_at(&file, 3) + 24, 8) == 1);
    release(&file);
    unlink(ns_ring_path(ring));
}

/* Readers apply updates in the order of the file. */
static void updates_keep_their_order(void)
{
    ns_ring *ring = new_ring_in(directory, CAPACITY);
    ns_channel *all[REUSED_FROM];
    open_many(ring, all, REUSED_FROM);
    update(all[0], "a", 1);
    update(all[0], "b", 100);
    uint64_t used = ns_strings_used(ring);
    update(all[0], "b", 100); /* says nothing new */
    CHECK(ns_strings_used(ring) == used);
    update(all[0], "c", 1);
    ns_channel_close(all[0]);
    ns_channel *next = open_one(ring, 1, 1);
    update(next, "first", 80);
    update(next, "second", 1);
    update(next, "third", 1);
    update(next, "second", 1);
    ring_file file = verify(ns_ring_path(ring));
    static const char *const names[] = {"{} ", "\"first\"", "\"second\"", "\"third\"", "\"second\""};
    unsigned updates = 0;
    for (size_t at = 0; at < file.text_count; at++)
        if (file.texts[at].kind == KIND_UPDATE)
            CHECK(updates < 5 && says(file.texts[at], names[updates++]));
    CHECK(updates == 5);
    release(&file);
    unlink(ns_ring_path(ring));
}

static void thousands_live(void)
{
    enum { ALIVE = 6000 };
    ns_ring *ring = new_ring_in(directory, 16384);
    static ns_channel *all[ALIVE];
    double start = seconds();
    open_many(ring, all, ALIVE);
    double opened = seconds() - start;
    for (int round = 0; round < 3; round++)
        for (int at = 0; at < ALIVE; at++)
            post(all[at]);
    ns_write_table(ring);
    ring_file file = verify(ns_ring_path(ring));
    CHECK(verify_entries(&file) >= ALIVE);
    for (uint32_t at = 1; at <= ALIVE; at += 97) {
        const unsigned char *one = table_entry(&file, 0, at), *other = table_entry(&file, 1, at);
        CHECK(get_word(one + 8, 8) == 3 || get_word(other + 8, 8) == 3);
    }
    printf("%d communicators alive: opened in %.0f ns each, file takes %.1f of %.1f MB\n", ALIVE,
           opened / ALIVE * 1e9, (double)file.reserved / 1e6, (double)file.size / 1e6);
    release(&file);
    /* Beyond the limit calls are recorded without a communicator. */
    for (int at = ALIVE; at < COMMS; at++)
        CHECK(ns_index(open_one(ring, at, 1)) == (uint32_t)at + 1);
    ns_channel *none = open_one(ring, COMMS, 1);
    CHECK(ns_index(none) == 0);
    int64_t position = post(none);
    CHECK(position == 3 * ALIVE && none->seq == 1 && !ns_withdraw(none, position));
    while (none->seq < 1024) /* makes no mark */
        post(none);
    update(none, "none", 1);
    ns_channel_close(none);
    ns_carried(none);
    ns_write_table(ring);
    ns_channel_close(all[77]);
    ns_channel *next = open_one(ring, COMMS, 1);
    CHECK(ns_index(next) == 78);
    ns_channel_close(next); /* neither ends nor mixes the queues of those without a number */
    CHECK(ns_index(open_one(ring, COMMS, 1)) == 78 && !ns_index(open_one(ring, COMMS, 1)));
    file = verify(ns_ring_path(ring));
    verify_entries(&file);
    CHECK(get_word(record_at(&file, (uint64_t)position) + 56, 2) == 0);
    release(&file);
    unlink(ns_ring_path(ring));
}

static void many_come_and_go(void)
{
    enum { ALL = COME_AND_GO, ALIVE = 16 };
    ns_ring *ring = new_ring_in(directory, CAPACITY);
    ns_channel *alive[ALIVE] = {NULL};
    uint64_t used = 0;
    double start = seconds();
    for (int at = 0; at < ALL; at++) {
        if (alive[at % ALIVE])
            ns_channel_close(alive[at % ALIVE]);
        alive[at % ALIVE] = open_one(ring, at, 1 + at % 7);
        CHECK(ns_index(alive[at % ALIVE]) > 0 && ns_index(alive[at % ALIVE]) <= REUSED_FROM);
        update(alive[at % ALIVE], "rank", 1);
        post(alive[at % ALIVE]);
        if (at == 2 * REUSED_FROM)
            used = ns_strings_used(ring);
    }
    double all = seconds() - start;
    CHECK(ns_strings_used(ring) == used);
    ring_file file = verify(ns_ring_path(ring));
    CHECK(verify_entries(&file) <= 2 * REUSED_FROM + 128);
    for (int at = 0; at < ALIVE; at++)
        CHECK(says(text_of(&file, KIND_COMM, ns_index(alive[at])), "since"));
    printf("%d communicators opened and closed: %.0f ns each, file takes %.1f of %.1f MB\n", ALL,
           all / ALL * 1e9, (double)file.reserved / 1e6, (double)file.size / 1e6);
    release(&file);
    unlink(ns_ring_path(ring));
}

static void *come_and_go(void *given)
{
    ns_ring *ring = given;
    ns_channel *own[8] = {NULL};
    for (int at = 0; at < 4000; at++) {
        ns_channel **one = &own[at % 8];
        if (*one) {
            ns_channel_close(*one);
            post(*one);
            update(*one, "late", at % 90);
        }
        *one = open_one(ring, at, at % 100);
        update(*one, "early", at % 90);
        post(*one);
        ns_carried(*one);
    }
    return NULL;
}

static void threads_come_and_go(void)
{
    ns_ring *ring = new_ring_in(directory, CAPACITY);
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++)
        CHECK(!pthread_create(&threads[at], NULL, come_and_go, ring));
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    ring_file file = verify(ns_ring_path(ring));
    verify_entries(&file);
    release(&file);
    unlink(ns_ring_path(ring));
}

int main(void)
{
    CHECK(mkdtemp(directory));
    numbers_are_reused();
    updates_keep_their_order();
    thousands_live();
    many_come_and_go();
    threads_come_and_go();
    rmdir(directory);
    return 0;
}
