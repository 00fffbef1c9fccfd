/* Which ring a communicator's calls go to: the one of this process's tracer, or one of our own.
 *
 * Without a tracer (C++, JAX, or before Python has made one) the plugin makes a ring, describes the
 * process, stores heartbeats and records the normal exit. A process that holds several ranks of a
 * communicator gets a ring for each, as a ring is that of one rank. */
#define _GNU_SOURCE
#include "profiler.h"

#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define MOST_OWN 64
#define DEFAULT_CAPACITY 65536
#define LEAST_CAPACITY 1024
#define MOST_CAPACITY (1 << 28)
#define ABOUT 8192
#define STACK (128 * 1024)
#define WATCH_NS 50000000 /* nanoseconds between two polls of a dormant plugin's mask */

static struct own {
    ns_ring *ring;
    ns_about about;
    bool launched; /* rank and world are those of the launcher, not of a communicator */
} own[MOST_OWN];
static _Atomic unsigned owns;
static bool failed, heartbeat_runs, fork_watched;
static enum ns_mode mode;
static bool mode_known;
static _Atomic uint64_t era;
static _Atomic(const int *) watched; /* NCCL's mask */
static _Atomic bool pinned;          /* its library stays, so that the heartbeat may read it */
static int nccl_version; /* as ncclGetVersion() spells it, 0 if unknown */
static void forget(void);

/* --- whether to record -------------------------------------------------------------------------- */

static enum ns_mode read_mode(void)
{
    const char *off = getenv("NCCLSCOPE");
    if ((off != NULL && strcmp(off, "0") == 0) || strcmp(ns_variable("NATIVE"), "0") == 0)
        return NS_OFF; /* the writer in Python knows nothing of the plugin */
    if (*ns_variable("ARM"))
        return NS_DORMANT;
    return *ns_variable("DIR") ? NS_ON : NS_OFF;
}

enum ns_mode ns_rings_mode(void)
{
    if (!fork_watched)
        fork_watched = pthread_atfork(NULL, NULL, forget) == 0;
    if (!mode_known) {
        mode = read_mode();
        mode_known = true;
    }
    /* A program may have made a tracer without the environment. */
    return mode == NS_OFF && ns_current() != NULL ? NS_ON : mode;
}

bool ns_rings_armed(void)
{
    const int *mask = atomic_load_explicit(&watched, memory_order_relaxed);
    if (mask == NULL)
        return false;
    int bits = __atomic_load_n(mask, __ATOMIC_RELAXED) & (NS_MASK | NS_MASK_V4);
    return (bits & ~ns_chain_mask()) != 0;
}

bool ns_rings_recording(void)
{
    return mode != NS_DORMANT || ns_rings_armed();
}

uint64_t ns_rings_era(void)
{
    return atomic_load_explicit(&era, memory_order_acquire);
}

/* Open the loaded library that an address belongs to; NULL for the program itself. */
static void *library_of(const void *address, int flags)
{
    Dl_info found;
    if (dladdr(address, &found) == 0 || found.dli_fname == NULL)
        return NULL;
    return dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD | flags);
}

static void read_version(const int *mask)
{
    void *library = library_of(mask, 0);
    int (*version_of)(int *) = NULL;
    *(void **)&version_of =
        dlsym(library != NULL ? library : RTLD_DEFAULT, "ncclGetVersion");
    if (version_of == NULL || version_of(&nccl_version) != 0)
        nccl_version = 0;
    if (library != NULL)
        dlclose(library);
}

void ns_rings_watch(const int *mask)
{
    if (atomic_load(&watched) == mask)
        return;
    read_version(mask);
    /* NCCL may be unloaded, and the heartbeat goes on. */
    atomic_store(&pinned, mode == NS_DORMANT && library_of(mask, RTLD_NODELETE) != NULL);
    atomic_store(&watched, mask);
}

/* --- heartbeat, exit, fork -------------------------------------------------------------------- */

/* Leave the rings as they are, once a dormant plugin has been disarmed: calls that are made before
 * it is armed again are missing, so what follows them is another record. */
static void disarm(void)
{
    pthread_mutex_lock(&ns_lock);
    atomic_store(&owns, 0);
    atomic_fetch_add(&era, 1);
    pthread_mutex_unlock(&ns_lock);
}

static void *keep_heartbeat(void *unused)
{
    (void)unused;
    for (unsigned waits = 1;; waits++) {
        /* A plugin that is disarmed and armed again in between would record on with a gap. */
        bool watches = mode == NS_DORMANT && atomic_load(&pinned);
        struct timespec wait = {watches ? 0 : 1, watches ? WATCH_NS : 0};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, NULL);
        unsigned count = atomic_load(&owns);
        if (count > 0 && watches && !ns_rings_armed()) {
            disarm();
            continue;
        }
        if (!watches || waits % (1000000000 / WATCH_NS) == 0)
            for (unsigned one = 0; one < count; one++)
                ns_store_heartbeat(own[one].ring);
    }
    return NULL;
}

/* Start the heartbeat in a thread that takes no signal of the program. */
static void start_heartbeat(void)
{
    if (heartbeat_runs)
        return;
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    if (pthread_attr_init(&attributes) != 0)
        return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_setstacksize(&attributes, STACK);
    int failed_small = pthread_create(&thread, &attributes, keep_heartbeat, NULL);
    if (failed_small) { /* too small for a program with many thread-local variables */
        pthread_attr_destroy(&attributes);
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    }
    heartbeat_runs = !failed_small || pthread_create(&thread, &attributes, keep_heartbeat, NULL) == 0;
    if (heartbeat_runs)
        pthread_setname_np(thread, "ncclscope-beat");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

__attribute__((destructor)) static void finish(void)
{
    unsigned count = atomic_load(&owns);
    for (unsigned one = 0; one < count; one++)
        ns_finish(own[one].ring);
}

/* In the child after a fork, the communicators and rings are those of its parent. */
static void forget(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    ns_lock = fresh;
    ns_comms_forget();
    ns_calls_forget();
    atomic_store(&owns, 0); /* the core has detached them */
    failed = heartbeat_runs = mode_known = false;
}

/* --- rings of our own -------------------------------------------------------------------------- */

static uint64_t capacity(void)
{
    const char *text = ns_variable("RECORDS");
    char *end;
    long long wanted = strtoll(text, &end, 10);
    if (end == text || *end != 0)
        return DEFAULT_CAPACITY;
    return wanted < LEAST_CAPACITY ? LEAST_CAPACITY
           : wanted > MOST_CAPACITY ? MOST_CAPACITY
                                    : (uint64_t)wanted;
}

/* Return the directory of rings; NCCLSCOPE_ARM=1 without NCCLSCOPE_DIR has a default. */
static const char *directory(char *into, size_t room)
{
    const char *named = ns_variable("DIR"), *arm = ns_variable("ARM");
    if (*named)
        return named;
    if (*arm == '/')
        return arm;
    snprintf(into, room, "/dev/shm/ncclscope-%u/armed", (unsigned)getuid());
    return into;
}

static void describe(struct own *one)
{
    char json[ABOUT];
    size_t length = ns_about_json(&one->about, json, sizeof json);
    ns_describe(one->ring, json, length);
}

static void identify(struct own *one, const ns_comm *comm)
{
    one->launched = false;
    one->about.rank = comm->rank;
    one->about.world = comm->ranks;
}

static struct own *make_ring(const ns_comm *comm)
{
    char default_path[PATH_MAX], reason[NS_REASON] = "";
    const char *folder = directory(default_path, sizeof default_path);
    unsigned count = atomic_load(&owns);
    ns_untraced untraced;
    if (failed || count == MOST_OWN)
        return NULL;
    struct own *one = &own[count];
    *one = (struct own){.about = {.api = comm->version, .nccl = nccl_version}};
    one->launched = count == 0 && ns_rank_of_launcher(&one->about.rank, &one->about.world);
    if (!one->launched || comm->ranks > one->about.world)
        identify(one, comm);
    ns_untraced_begin(&untraced, folder, &one->about);
    one->ring = ns_ring_create(folder, capacity(), reason);
    if (one->ring == NULL) {
        failed = true;
        ns_untraced_keep(&untraced, reason);
        fprintf(stderr, "ncclscope: NCCL's calls are not recorded in this process: %s\n", reason);
        return NULL;
    }
    if (mode == NS_DORMANT)
        one->about.armed_ns = ns_now(one->ring);
    describe(one);
    ns_store_heartbeat(one->ring);
    ns_ring_publish(one->ring);
    ns_untraced_remove(&untraced);
    atomic_store(&owns, count + 1);
    start_heartbeat();
    return one;
}

static struct own *own_of(const ns_ring *ring)
{
    for (unsigned one = 0; one < atomic_load(&owns); one++)
        if (own[one].ring == ring)
            return &own[one];
    return NULL;
}

/* Return the ring of our own that may hold a communicator: of the same rank, or at least one that
 * holds no other rank of it. */
static struct own *find_own(const ns_comm *comm)
{
    struct own *found = NULL;
    for (unsigned at = 0; at < atomic_load(&owns); at++) {
        struct own *one = &own[at];
        if (ns_comm_shares(comm, one->ring))
            continue;
        if (one->about.rank == comm->rank && one->about.world == comm->ranks)
            return one;
        if (found == NULL)
            found = one;
    }
    return found;
}

ns_ring *ns_rings_choose(ns_comm *comm)
{
    ns_ring *current = ns_current();
    atomic_store(&comm->era, atomic_load(&era));
    if (current != NULL && !ns_comm_shares(comm, current))
        return comm->ring = current;
    struct own *one = find_own(comm);
    if (one == NULL)
        one = make_ring(comm);
    if (one == NULL)
        return comm->ring = NULL;
    if (comm->ranks > one->about.world) {
        identify(one, comm); /* the launcher counts processes, or the job is larger than known */
        describe(one);
    }
    return comm->ring = one->ring;
}

bool ns_rings_own(const ns_ring *ring)
{
    return ring != NULL && own_of(ring) != NULL;
}

int ns_rings_world(const ns_comm *comm)
{
    int rank, world;
    const struct own *one = own_of(comm->ring);
    if (one != NULL) {
        rank = one->about.rank;
        world = one->about.world;
    } else if (!ns_rank_of_launcher(&rank, &world)) {
        return 0;
    }
    return world == comm->ranks && rank == comm->rank ? world : 0;
}

void ns_rings_note_full(const ns_ring *ring)
{
    struct own *one = ring == NULL ? NULL : own_of(ring);
    if (one != NULL && !one->about.full) {
        one->about.full = true;
        describe(one);
    }
}
