/* The file of a ring: its place, its header, the description of the process. */
#define _GNU_SOURCE /* O_NOFOLLOW and others under -std=c11 */
#include "inside.h"
#include "sign.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { VERSION = 3, MIN_CAPACITY = 1024, SHARE = 2, NAMES_TRIED = 16 };

static pthread_mutex_t rings_lock = PTHREAD_MUTEX_INITIALIZER;
static ns_ring *rings;   /* all of this process, for its children */
static ns_ring *current; /* the one that the plugin writes */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

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

/* Store the complements of words, all of which are zero. */
static void prepare_words(ns_ring *ring)
{
    for (uint64_t word = NS_WORDS; word < NS_WORDS_END; word += 8)
        ns_put_word(ring, word, 0);
    ns_put_word(ring, NS_REUSED, 0);
    ns_put64(ring->file + NS_COUNT + 8, ~(uint64_t)0);
}

ns_ring *ns_ring_map(int descriptor, uint64_t capacity, bool device, uint64_t clock,
                     char reason[NS_REASON])
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
    ring->clock = clock ? clock : ns_clock();
    ring->last_closed = &ring->closed;
    ns_room_open(ring);
    prepare_words(ring);
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
    uint64_t header[NS_HEADER_CHECK / 8] = {
        0, VERSION | (uint64_t)NS_RECORD << 32, g->capacity, g->about_size, g->strings_size,
        g->heap_size, g->marks, NS_MAX_COMMS, g->graphs_size, g->device_size, ring->clock,
    };
    memcpy(header, "ncclring", 8);
    for (unsigned char *page = ring->file + NS_MIRROR;; page = ring->file) {
        memcpy(page + 8, header + 1, sizeof header - 8);
        ns_put32(page + NS_HEADER_CHECK, ns_crc32(0, header, sizeof header));
        ns_publish64(page, header[0]); /* last: a reader never sees a header that is not whole */
        if (page == ring->file)
            return;
    }
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
        for (uint64_t copy = 2; copy-- > 0;) { /* so that one of them is always whole */
            unsigned char *to = ring->file + ring->geometry.about + copy * ring->geometry.about_size;
            ns_publish64(to, 0);
            __atomic_thread_fence(__ATOMIC_RELEASE);
            memcpy(to + NS_ABOUT_HEAD, json, length);
            ns_put32(to + 8, (uint32_t)length);
            ns_put32(to + 12, ns_crc32((uint32_t)generation, json, length));
            ns_put32(to + 16, 0);
            ns_publish64(to, generation);
        }
        ns_put_word(ring, NS_ABOUTS, generation);
    }
    pthread_mutex_unlock(&ring->lock);
    return true;
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

/* Reserve ranges of a new file; returns an error number. */
static int reserve_ranges(int file, const ns_size *size)
{
    if (ftruncate(file, (off_t)size->total))
        return errno;
    for (size_t at = 0; at < size->count; at++) {
        const ns_range *range = &size->ranges[at];
        int failed = posix_fallocate(file, (off_t)range->begin, (off_t)range->size);
        if (failed)
            return failed;
    }
    return 0;
}

/* Open a new file in a directory whose name is no link. Returns -1 with errno. */
static int reserve(const char *directory, const char *name, const ns_size *size)
{
    struct statvfs system;
    int folder = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), file = -1;
    if (folder < 0)
        return -1;
    if (fstatvfs(folder, &system)
        || (system.f_blocks && system.f_bavail * system.f_frsize < size->free)) {
        close(folder);
        errno = ENOSPC;
        return -1;
    }
    file = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0) {
        int failed = reserve_ranges(file, size);
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

int ns_new_file(const char *directory, const char *suffix, const ns_size *size, char path[NS_PATH])
{
    char host[256] = "", name[320];
    int file = -1;
    gethostname(host, sizeof host - 1);
    make_private(directory);
    for (int number = 0; number < NAMES_TRIED && file < 0; number++) {
        char again[16] = "";
        if (number)
            snprintf(again, sizeof again, "-%d", number);
        snprintf(name, sizeof name, "%s-%d-%llx%s%s", host, (int)getpid(),
                 (unsigned long long)(ns_now(NULL) / 1000000), again, suffix);
        file = reserve(directory, name, size);
        if (file < 0 && errno != EEXIST)
            break;
    }
    snprintf(path, NS_PATH, "%.3072s/%s", directory, name);
    return file;
}

static ns_ring *create_in(const char *directory, uint64_t capacity, char reason[NS_REASON])
{
    char path[NS_PATH];
    ns_geometry geometry = ns_geometry_for(capacity, false);
    ns_range ranges[NS_FIRST_RANGES];
    ns_size size = {geometry.total, 0, ranges, ns_first_ranges(&geometry, ranges)};
    for (size_t at = 0; at < size.count; at++)
        size.free += SHARE * ranges[at].size;
    int file = ns_new_file(directory, ".ring", &size, path);
    if (file < 0) {
        snprintf(reason, NS_REASON, "no ring can be created in %.200s (%s)", directory,
                 strerror(errno));
        return NULL;
    }
    ns_ring *ring = ns_ring_map(file, capacity, false, 0, reason);
    close(file);
    if (ring)
        ns_ring_set_path(ring, path);
    else
        unlink(path);
    return ring;
}

void ns_leave_pointer(const char *directory, const char *path, char pointer[NS_PATH])
{
    const char *name = strrchr(path, '/');
    snprintf(pointer, NS_PATH, "%.3072s/%.512s.moved", directory, name ? name + 1 : path);
    int file = open(pointer, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    (void)!dprintf(file, "%s\n", path); /* an empty one names a file of its own name */
    close(file);
}

bool ns_may_write(uint64_t size)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur >= size;
}

static bool is_own(const char *directory)
{
    struct stat found;
    return !lstat(directory, &found) && S_ISDIR(found.st_mode) && found.st_uid == geteuid();
}

bool ns_place(const char *directory, int number, char place[NS_FOLDER])
{
    char asked[NS_FOLDER], here[1024], parent[2048];
    const char *temporary = getenv("TMPDIR"), *name;
    const char *const bases[NS_PLACES] = {
        NULL,
        "/dev/shm",
        temporary && *temporary ? temporary : "/tmp",
        getcwd(here, sizeof here),
    };
    snprintf(asked, sizeof asked, "%s", directory);
    for (size_t length = strlen(asked); length > 1 && asked[length - 1] == '/'; length--)
        asked[length - 1] = 0;
    if (number == 0) {
        memcpy(place, asked, sizeof asked);
        return true;
    }
    if (!bases[number])
        return false;
    name = strrchr(asked, '/') ? strrchr(asked, '/') + 1 : asked;
    snprintf(parent, sizeof parent, "%.1024s/ncclscope-%u", bases[number], (unsigned)getuid());
    snprintf(place, NS_FOLDER, "%s/%.512s", parent, name);
    if (!strcmp(place, asked))
        return false;
    mkdir(parent, 0700);
    return is_own(parent);
}

ns_ring *ns_ring_create(const char *directory, uint64_t capacity, char reason[NS_REASON])
{
    char asked[NS_FOLDER], place[NS_FOLDER], pointer[NS_PATH], why[NS_REASON];
    if (capacity < MIN_CAPACITY)
        capacity = MIN_CAPACITY;
    reason[0] = 0;
    if (!ns_may_write(ns_geometry_for(capacity, false).total)) {
        snprintf(reason, NS_REASON, "files may not be as large as a ring (ulimit -f)");
        return NULL;
    }
    ns_place(directory, 0, asked);
    ns_ring *ring = create_in(asked, capacity, reason);
    for (int number = 1; !ring && number < NS_PLACES; number++)
        if (ns_place(directory, number, place) && (ring = create_in(place, capacity, why)))
            ns_leave_pointer(asked, ring->path, pointer);
    return ring;
}
