/* Call the profiler plugin in any order, from several threads, with null pointers, contexts and
 * handles of others, unknown events and names. It must neither crash nor race nor hang.
 *
 *     profiler_fuzz [SECONDS [SEED]]
 *
 * The rings go to NCCLSCOPE_DIR, which is removed afterwards where the program made it itself. */
#define _GNU_SOURCE
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "profiler_abi.h"
#include "ring.h"

extern struct np_profiler_v4 ncclProfiler_v4;
extern struct np_profiler ncclProfiler_v5, ncclProfiler_v6, ncclProfiler_v7;

enum { THREADS = 4, SHARED = 16, OWN = 16, HANDLES = 64 };

static void *shared[SHARED]; /* contexts that all threads use, and none finalizes */
static double deadline;
static char made[64];

struct state {
    uint64_t random;
    void *contexts[OWN];
    void *handles[HANDLES];
    unsigned announced;
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static uint64_t next(struct state *state)
{
    state->random ^= state->random << 13;
    state->random ^= state->random >> 7;
    state->random ^= state->random << 17;
    return state->random;
}

static int below(struct state *state, int limit)
{
    return (int)(next(state) % (uint64_t)limit);
}

static const struct np_profiler *later(struct state *state)
{
    const struct np_profiler *all[] = {&ncclProfiler_v5, &ncclProfiler_v6, &ncclProfiler_v7};
    return all[below(state, 3)];
}

static const char *name_of(struct state *state)
{
    static const char *const names[] = {
        "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Send", "Recv", "AlltoAll",
        "Gather", "Scatter", "Invalid", "", "Operation-of-a-later-release-with-a-very-long-name",
        "\xff\xfe\"\\\n", NULL,
    };
    return names[below(state, sizeof names / sizeof *names)];
}

static const char *dtype_of(struct state *state)
{
    static const char *const names[] = {"ncclFloat32", "ncclBfloat16", "ncclInt8", "Unknown",
                                        "ncclFloat4-of-a-later-release-with-a-long-name", "", NULL};
    return names[below(state, sizeof names / sizeof *names)];
}

static size_t count_of(struct state *state)
{
    switch (below(state, 4)) {
    case 0:
        return 0;
    case 1:
        return SIZE_MAX - (size_t)below(state, 3);
    default:
        return (size_t)below(state, 1 << 20);
    }
}

static void *any_context(struct state *state)
{
    switch (below(state, 8)) {
    case 0:
        return NULL;
    case 1:
        return (void *)(uintptr_t)next(state); /* what no init() has returned */
    case 2:
    case 3:
        return state->contexts[below(state, OWN)];
    default:
        return shared[below(state, SHARED)];
    }
}

static void *any_handle(struct state *state)
{
    if (below(state, 16) == 0)
        return (void *)(uintptr_t)((uint64_t)0x4e54 << 48 | next(state) >> 16);
    return state->handles[below(state, HANDLES)];
}

static void begin(struct state *state, void **context)
{
    static const char *const names[] = {NULL, "", "default_pg", "a \"name\" \\ that is \x01 odd",
                                        "a name that is longer than sixty-four bytes, so that it "
                                        "has to be cut somewhere by the plugin"};
    uint64_t hash = (uint64_t)below(state, 600);
    int ranks = below(state, 5) == 0 ? below(state, 3000) - 2 : 4, rank = below(state, 6) - 1;
    const char *name = names[below(state, 5)];
    /* NCCL has one mask in a process. */
    static int mask;
    int *given = below(state, 16) ? &mask : NULL;
    if (below(state, 16) == 0)
        context = NULL;
    if (below(state, 4) == 0)
        ncclProfiler_v4.init(context, given, name, hash, below(state, 3), ranks, rank, NULL);
    else
        later(state)->init(context, hash, given, name, 1, ranks, rank, NULL);
}

static void fill(struct state *state, struct np_event *event)
{
    static const uint64_t types[] = {NP_GROUP_API, NP_COLL_API, NP_COLL_API, NP_P2P_API,
                                     NP_P2P_API,   NP_P2P,      NP_P2P,      NP_COLL};
    for (int word = 0; word < 11; word++)
        event->words[word] = next(state);
    event->type = below(state, 8) ? types[below(state, 8)] : (uint64_t)1 << below(state, 64);
    event->parent = any_handle(state);
    if (event->type == NP_COLL_API) {
        event->coll_api = (struct np_coll_api){name_of(state), count_of(state), dtype_of(state),
                                               below(state, 6) - 1, NULL, below(state, 2) == 0};
    } else if (event->type == NP_P2P_API) {
        event->p2p_api = (struct np_p2p_api){name_of(state), count_of(state), dtype_of(state), NULL,
                                             below(state, 2) == 0};
    } else if (event->type == NP_P2P) {
        event->p2p.func = name_of(state);
        event->p2p.dtype = dtype_of(state);
        event->p2p.peer = below(state, 6) - 1;
    } else if (event->type == NP_COLL) {
        event->coll.func = name_of(state);
        event->coll.dtype = dtype_of(state);
        event->coll.count = count_of(state);
    } else if (event->type == NP_GROUP_API) {
        event->group_api.captured = below(state, 2) == 0;
    }
}

static void emit(struct state *state)
{
    /* As long as the longest event of version 7. */
    union {
        struct np_event event;
        struct np_event_v4 older;
        unsigned char bytes[136];
    } all = {.bytes = {0}};
    void **handle = below(state, 16) ? &state->handles[below(state, HANDLES)] : NULL;
    void *context = any_context(state);
    fill(state, &all.event);
    if (below(state, 16) == 0) {
        later(state)->start(context, handle, NULL);
    } else if (below(state, 4) == 0) {
        struct np_event_v4 older = {.type = (uint8_t)all.event.type, .parent = all.event.parent};
        memcpy(older.words, all.event.words, sizeof older.words);
        if (older.type == NP_COLL || older.type == NP_P2P)
            ncclProfiler_v4.start(context, handle, &older);
    } else {
        later(state)->start(context, handle, &all.event);
    }
}

static void announce(struct state *state)
{
    if (state->announced > 0 && below(state, 8)) {
        ns_conclude();
        state->announced--;
    } else if (state->announced < 20) {
        ns_announce(NULL);
        state->announced++;
    }
}

static void step(struct state *state)
{
    int place = below(state, OWN);
    switch (below(state, 32)) {
    case 0:
        begin(state, &state->contexts[place]);
        break;
    case 1:
        later(state)->finalize(below(state, 8) ? state->contexts[place] : NULL);
        break;
    case 2:
        later(state)->stop(any_handle(state));
        break;
    case 3:
        later(state)->state(any_handle(state), below(state, 40), NULL);
        break;
    case 4:
        announce(state);
        break;
    default:
        emit(state);
    }
}

static void *run(void *given)
{
    struct state state = {.random = (uint64_t)(uintptr_t)given * 0x9e3779b97f4a7c15u | 1};
    while (now() < deadline)
        for (int at = 0; at < 256; at++)
            step(&state);
    while (state.announced-- > 0)
        ns_conclude();
    return NULL;
}

static void make_thousand(void)
{
    void *contexts[1000];
    int mask;
    for (int at = 0; at < 1000; at++) {
        struct np_event event = {.type = NP_COLL_API};
        event.coll_api = (struct np_coll_api){"AllReduce", 1, "ncclInt8", 0, NULL, false};
        ncclProfiler_v5.init(&contexts[at], 0x10000u + (unsigned)at, &mask, "many", 1, 4, 0, NULL);
        ncclProfiler_v5.start(contexts[at], NULL, &event);
    }
    for (int at = 0; at < 1000; at++)
        ncclProfiler_v5.finalize(contexts[at]);
}

#ifndef __SANITIZE_THREAD__
/* The child has its parent's contexts, and may make its own. */
static int fork_once(void)
{
    struct state state = {.random = 77};
    memcpy(state.contexts, shared, sizeof shared);
    pid_t child = fork();
    if (child == 0) {
        for (int at = 0; at < 2000; at++)
            step(&state);
        _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    return status;
}
#endif

static int remove_one(const char *path, const struct stat *about, int type, struct FTW *place)
{
    (void)about, (void)type, (void)place;
    return remove(path);
}

int main(int count, char **arguments)
{
    double seconds = count > 1 ? atof(arguments[1]) : 2;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 0) : 1;
    struct state state = {.random = seed | 1};
    pthread_t threads[THREADS];
    if (getenv("NCCLSCOPE_DIR") == NULL) {
        strcpy(made, "/tmp/profiler-fuzz-XXXXXX");
        setenv("NCCLSCOPE_DIR", mkdtemp(made), 1);
    }
    setenv("NCCLSCOPE_RECORDS", "1024", 1);
    for (int at = 0; at < SHARED; at++)
        begin(&state, &shared[at]);
#ifndef __SANITIZE_THREAD__ /* it allows no thread in the child */
    if (fork_once() != 0)
        return fprintf(stderr, "the child failed\n"), 1;
#endif
    deadline = now() + seconds;
    for (uintptr_t at = 0; at < THREADS; at++)
        pthread_create(&threads[at], NULL, run, (void *)(seed * THREADS + at + 1));
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    make_thousand();
    if (made[0])
        nftw(made, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}
