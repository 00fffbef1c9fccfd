/* The file of a ring: its place, its header, the description of the process. */
#define _GNU_SOURCE /* O_NOFOLLOW and others under -std=c11 */
#include "inside.h"
#include "sign.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { VERSION = 1, MIN_CAPACITY = 1024, SHARE = 8, NAMES_TRIED = 16 };

static pthread_mutex_t rings_lock = PTHREAD_MUTEX_INITIALIZER;
static ns_ring *rings;   /* all of this process, for its children */
static ns_ring *current; /* the one that the plugin writes */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* --- sections ------------------------------------------------------------------------------ */

static uint64_t pages(uint64_t size)
{
    return (size + NS_PAGE - 1) / NS_PAGE * NS_PAGE;
}

static uint64_t between(uint64_t low, uint64_t value, uint64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* As layout.Geometry.for_capacity(). */
ns_geometry ns_geometry_for(uint64_t capacity, bool device)
{
    ns_geometry g = {.capacity = capacity, .about_size = 2 * NS_PAGE};
    uint64_t wanted = capacity * 8;
    g.strings_size = pages(between(16 * NS_PAGE, wanted, 64 * NS_PAGE));
    g.heap_size = pages(between(4 * NS_PAGE, wanted, 256 * NS_PAGE));
    g.marks = capacity / NS_MARK_EVERY * 2;
    if (g.marks < 128)
        g.marks = 128;
    g.graphs_size = pages(between(16 * NS_PAGE, wanted, 128 * NS_PAGE));
    g.device_size = device ? pages(NS_MAX_COMMS * 128) : 0;
    g.about = NS_PAGE;
    g.strings = g.about + pages(2 * g.about_size);
    g.heap = g.strings + pages(g.strings_size);
    g.table = g.heap + pages(g.heap_size);
    g.mark_area = g.table + pages(2 * NS_MAX_COMMS * NS_ENTRY);
    g.records = g.mark_area + pages(g.marks * NS_ENTRY);
    g.total = g.records + pages(capacity * NS_RECORD) + pages(g.graphs_size) + g.device_size;
    return g;
}

/* As layout.table_every(): a power of two, a quarter of a small ring's capacity. */
static uint64_t table_every(uint64_t capacity)
{
    uint64_t every = 1;
    while (every < 1024 && every * 2 <= capacity / 4)
        every *= 2;
    return every;
}

/* --- a process's rings ------------------------------------------------------------------------ */

static void leave_to_parent(void)
{
    pthread_mutex_init(&rings_lock, NULL);
    for (ns_ring *ring = rings; ring; ring = ring->next) {
        /* A thread that does not exist in this process may have held it. */
        pthread_mutex_init(&ring->lock, NULL);
        ring->detached = true;
    }
    rings = NULL;
    __atomic_store_n(&current, NULL, __ATOMIC_RELEASE);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, leave_to_parent);
}

ns_ring *ns_current(void)
{
    return __atomic_load_n(&current, __ATOMIC_ACQUIRE);
}

void ns_set_current(ns_ring *ring)
{
    __atomic_store_n(&current, ring, __ATOMIC_RELEASE);
}

ns_ring *ns_ring_map(int descriptor, uint64_t capacity, bool device, char reason[NS_REASON])
{
    ns_ring *ring = calloc(1, sizeof *ring);
    if (!ring) {
        snprintf(reason, NS_REASON, "no memory");
        return NULL;
    }
    ring->geometry = ns_geometry_for(capacity, device);
    void *file = mmap(NULL, ring->geometry.total, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (file == MAP_FAILED) {
        snprintf(reason, NS_REASON, "%s", strerror(errno));
        free(ring);
        return NULL;
    }
    pthread_mutex_init(&ring->lock, NULL);
    ring->file = file;
    ring->records = ring->file + ring->geometry.records;
    ring->capacity = capacity;
    ring->table_mask = table_every(capacity) - 1;
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&rings_lock);
    ring->next = rings;
    rings = ring;
    pthread_mutex_unlock(&rings_lock);
    return ring;
}

void ns_ring_publish(ns_ring *ring)
{
    const ns_geometry *g = &ring->geometry;
    uint64_t sizes[] = {g->capacity, g->about_size, g->strings_size, g->heap_size, g->marks};
    uint64_t magic;
    ns_put64(ring->file + NS_GRAPHS_SIZE, g->graphs_size);
    ns_put32(ring->file + 8, VERSION);
    ns_put32(ring->file + 12, NS_RECORD);
    memcpy(ring->file + 16, sizes, sizeof sizes);
    memcpy(&magic, "ncclring", sizeof magic);
    ns_publish64(ring->file, magic);
}

const char *ns_ring_path(const ns_ring *ring)
{
    return ring->path;
}

void ns_ring_set_path(ns_ring *ring, const char *path)
{
    snprintf(ring->path, sizeof ring->path, "%s", path);
}

uint64_t ns_ring_position(const ns_ring *ring)
{
    return __atomic_load_n(&ring->position, __ATOMIC_RELAXED);
}

uint64_t ns_ring_refused(const ns_ring *ring)
{
    return ring->refused;
}

bool ns_describe(ns_ring *ring, const char *json, size_t length)
{
    if (length > ring->geometry.about_size - NS_ABOUT_HEAD)
        return false;
    pthread_mutex_lock(&ring->lock);
    if (!ring->detached) {
        uint64_t generation = ++ring->generation;
        unsigned char *to =
            ring->file + ring->geometry.about + generation % 2 * ring->geometry.about_size;
        ns_publish64(to, 0);
        __atomic_thread_fence(__ATOMIC_RELEASE);
        memcpy(to + NS_ABOUT_HEAD, json, length);
        ns_put32(to + 8, (uint32_t)length);
        ns_put32(to + 12, ns_crc32((uint32_t)generation, json, length));
        ns_put32(to + 16, 0);
        ns_publish64(to, generation);
    }
    pthread_mutex_unlock(&ring->lock);
    return true;
}

void ns_store_heartbeat(ns_ring *ring)
{
    if (!ring->detached)
        ns_publish64(ring->file + NS_HEARTBEAT, ns_now());
}

void ns_finish(ns_ring *ring)
{
    ns_write_table(ring);
    ns_store_heartbeat(ring);
    if (!ring->detached)
        ns_publish64(ring->file + NS_EXITED, ns_now());
}

void ns_detach(ns_ring *ring)
{
    ring->detached = true;
    if (ns_current() == ring)
        ns_set_current(NULL);
}

/* --- a new file ------------------------------------------------------------------------------ */

/* Create a directory and its missing parents, for this user alone. */
static void make_private(const char *directory)
{
    char path[3072];
    snprintf(path, sizeof path, "%s", directory);
    for (char *at = path + 1; *at; at++)
        if (*at == '/') {
            *at = 0;
            mkdir(path, 0700);
            *at = '/';
        }
    mkdir(path, 0700);
}

/* Open a new file in a directory whose name is no link, with its space reserved: a store to a
 * mapped file on a full file system kills the process. Returns -1 with errno. */
static int reserve(const char *directory, const char *name, uint64_t size)
{
    struct statvfs system;
    int folder = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), file = -1;
    if (folder < 0)
        return -1;
    if (fstatvfs(folder, &system) || system.f_bavail * system.f_frsize < size * SHARE) {
        close(folder);
        errno = ENOSPC;
        return -1;
    }
    file = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0) {
        int failed = posix_fallocate(file, 0, (off_t)size);
        if (failed) {
            close(file);
            unlinkat(folder, name, 0);
            file = -1;
            errno = failed;
        }
    }
    int kept = errno;
    close(folder);
    errno = kept;
    return file;
}

static ns_ring *create_in(const char *directory, uint64_t capacity, char reason[NS_REASON])
{
    char host[256] = "", name[320], path[4096];
    uint64_t size = ns_geometry_for(capacity, false).total;
    int file = -1;
    gethostname(host, sizeof host - 1);
    make_private(directory);
    for (int number = 0; number < NAMES_TRIED && file < 0; number++) {
        char suffix[16] = "";
        if (number)
            snprintf(suffix, sizeof suffix, "-%d", number);
        snprintf(name, sizeof name, "%s-%d-%llx%s.ring", host, (int)getpid(),
                 (unsigned long long)(ns_now() / 1000000), suffix);
        file = reserve(directory, name, size);
        if (file < 0 && errno != EEXIST)
            break;
    }
    if (file < 0) {
        snprintf(reason, NS_REASON, "no ring can be created in %.200s (%s)", directory,
                 strerror(errno));
        return NULL;
    }
    snprintf(path, sizeof path, "%.3072s/%s", directory, name);
    ns_ring *ring = ns_ring_map(file, capacity, false, reason);
    close(file);
    if (ring)
        ns_ring_set_path(ring, path);
    else
        unlink(path);
    return ring;
}

/* A file of one line in the requested directory, which names a ring that is elsewhere. */
static void leave_pointer(const char *directory, const ns_ring *ring)
{
    char path[4096];
    const char *name = strrchr(ring->path, '/');
    snprintf(path, sizeof path, "%.3072s/%.512s.moved", directory, name ? name + 1 : ring->path);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    if (dprintf(file, "%s\n", ring->path) < 0)
        unlink(path);
    close(file);
}

static bool is_own(const char *directory)
{
    struct stat found;
    return !lstat(directory, &found) && S_ISDIR(found.st_mode) && found.st_uid == geteuid();
}

ns_ring *ns_ring_create(const char *directory, uint64_t capacity, char reason[NS_REASON])
{
    char parent[2048], elsewhere[3072], why[NS_REASON];
    ns_ring *ring = NULL;
    if (capacity < MIN_CAPACITY)
        capacity = MIN_CAPACITY;
    reason[0] = 0;
    ring = create_in(directory, capacity, reason);
    if (ring)
        return ring;
    const char *temporary = getenv("TMPDIR"), *last = strrchr(directory, '/');
    snprintf(parent, sizeof parent, "%.1024s/ncclscope-%d",
             temporary && *temporary ? temporary : "/tmp", (int)getuid());
    mkdir(parent, 0700);
    if (!is_own(parent))
        return NULL;
    snprintf(elsewhere, sizeof elsewhere, "%s/%.512s", parent, last ? last + 1 : directory);
    ring = create_in(elsewhere, capacity, why);
    if (ring)
        leave_pointer(directory, ring);
    return ring;
}
