/* The parts of a ring's file, and which of their pages are reserved.
 *
 * The file is sparse. A store to a page for which the file system has no room kills the process, so
 * pages are reserved first: some when the file is created, the others by the kernel's
 * MADV_POPULATE_WRITE, which answers with an error instead. */
#define _GNU_SOURCE /* madvise under -std=c11 */
#include "inside.h"

#include <errno.h>
#include <sys/mman.h>

enum { POPULATE_WRITE = 23, TRIES = 16, CHUNK = 16 * NS_PAGE, MOST_RECORDS = 4096 };

static uint64_t pages(uint64_t size)
{
    return (size + NS_PAGE - 1) / NS_PAGE * NS_PAGE;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t between(uint64_t low, uint64_t value, uint64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* As layout.Geometry.for_capacity(). */
ns_geometry ns_geometry_for(uint64_t capacity, bool device)
{
    ns_geometry g = {.capacity = capacity, .about_size = 2 * NS_PAGE};
    g.strings_size = pages(between(256 * NS_PAGE, capacity * 64, 1024 * NS_PAGE));
    g.heap_size = pages(between(4 * NS_PAGE, capacity * 8, 256 * NS_PAGE));
    g.marks = capacity / NS_MARK_EVERY * 2;
    if (g.marks < 128)
        g.marks = 128;
    g.graphs_size = pages(between(16 * NS_PAGE, capacity * 8, 128 * NS_PAGE));
    g.device_size = device ? pages(NS_DEVICE_COMMS * NS_SLOT) : 0;
    g.about = NS_PAGE;
    g.mirror = g.about + pages(2 * g.about_size);
    g.strings = g.mirror + NS_PAGE;
    g.heap = g.strings + 2 * g.strings_size;
    g.table = g.heap + g.heap_size;
    g.mark_area = g.table + pages(2 * NS_MAX_COMMS * NS_ENTRY);
    g.carried = g.mark_area + pages(g.marks * NS_ENTRY);
    g.records = g.carried + pages(NS_MAX_COMMS * NS_CARRIED);
    g.graphs = g.records + pages(capacity * NS_RECORD);
    g.device = g.graphs + 2 * g.graphs_size;
    g.total = g.device + g.device_size;
    return g;
}

/* As layout.table_every(): a power of two, a quarter of few records. */
static uint64_t table_every(uint64_t records)
{
    uint64_t every = 1;
    while (every < 1024 && every * 2 <= records / 4)
        every *= 2;
    return every;
}

/* --- reserving ---------------------------------------------------------------------------------- */

static pthread_once_t probed = PTHREAD_ONCE_INIT;
static bool grows;

static void probe(void)
{
    void *page = mmap(NULL, NS_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* Linux before 5.14 does not know it. Any other answer leaves that to the first need. */
    grows = page == MAP_FAILED || !madvise(page, NS_PAGE, POPULATE_WRITE) || errno != EINVAL;
    if (page != MAP_FAILED)
        munmap(page, NS_PAGE);
}

bool ns_grows(void)
{
    pthread_once(&probed, probe);
    return grows;
}

size_t ns_first_ranges(const ns_geometry *g, ns_range ranges[NS_FIRST_RANGES])
{
    size_t count = 0;
    if (!ns_grows()) {
        ranges[0] = (ns_range){0, g->total};
        return 1;
    }
    ranges[count++] = (ns_range){0, g->strings + CHUNK};
    ranges[count++] = (ns_range){g->strings + g->strings_size, CHUNK};
    ranges[count++] = (ns_range){g->table, NS_PAGE};
    ranges[count++] = (ns_range){g->table + NS_MAX_COMMS * NS_ENTRY, NS_PAGE};
    ranges[count++] = (ns_range){g->mark_area, g->carried - g->mark_area};
    ranges[count++] = (ns_range){g->carried, NS_PAGE};
    ranges[count++] =
        (ns_range){g->records, pages(least(g->capacity, NS_FIRST_RECORDS) * NS_RECORD)};
    if (g->device_size)
        ranges[count++] = (ns_range){g->device, g->device_size};
    return count;
}

void ns_room_open(ns_ring *ring)
{
    const ns_geometry *g = &ring->geometry;
    bool part = ns_grows();
    ring->room = part ? least(g->capacity, NS_FIRST_RECORDS) : g->capacity;
    ring->strings_room = part ? CHUNK : g->strings_size;
    ring->heap_room = part ? 0 : g->heap_size;
    ring->table_room = part ? NS_PAGE / NS_ENTRY : NS_MAX_COMMS;
    ring->carried_room = part ? NS_PAGE / NS_CARRIED : NS_MAX_COMMS;
    ring->table_mask = table_every(ring->room) - 1;
}

static bool populate(ns_ring *ring, uint64_t offset, uint64_t size)
{
    int before = errno;
    bool done = !size;
    for (int tried = 0; !done && tried < TRIES; tried++) {
        done = !madvise(ring->file + offset, size, POPULATE_WRITE);
        if (!done && errno != EINTR && errno != EAGAIN)
            break;
    }
    errno = before;
    return done;
}

/* Reserve the first `size` bytes of a part and of its copy, of which `*room` are. */
static bool extend(ns_ring *ring, uint64_t part, uint64_t whole, uint64_t *room, uint64_t size,
                   int copies)
{
    if (size <= *room)
        return true;
    uint64_t wanted = least((size + CHUNK - 1) / CHUNK * CHUNK, whole);
    if (size > whole)
        return false;
    for (int copy = 0; copy < copies; copy++)
        if (!populate(ring, part + (uint64_t)copy * whole + *room, wanted - *room))
            return false;
    *room = wanted;
    return true;
}

bool ns_room_strings(ns_ring *ring, uint64_t size)
{
    const ns_geometry *g = &ring->geometry;
    return extend(ring, g->strings, g->strings_size, &ring->strings_room, size, 2);
}

bool ns_room_heap(ns_ring *ring, uint64_t size)
{
    const ns_geometry *g = &ring->geometry;
    return extend(ring, g->heap, g->heap_size, &ring->heap_room, size, 1);
}

bool ns_room_comm(ns_ring *ring, uint32_t number)
{
    const ns_geometry *g = &ring->geometry;
    if (number > ring->table_room) {
        uint64_t offset = g->table + ring->table_room * NS_ENTRY;
        if (!populate(ring, offset, NS_PAGE)
            || !populate(ring, offset + NS_MAX_COMMS * NS_ENTRY, NS_PAGE))
            return false;
        ring->table_room += NS_PAGE / NS_ENTRY;
    }
    if (number > ring->carried_room) {
        if (!populate(ring, g->carried + ring->carried_room * NS_CARRIED, NS_PAGE))
            return false;
        ring->carried_room += NS_PAGE / NS_CARRIED;
    }
    return true;
}

void ns_room_records(ns_ring *ring)
{
    uint64_t capacity = ring->geometry.capacity;
    /* As writer.py, in which other threads may record before this is called. */
    while (!ring->detached && ring->room < ring->capacity
           && ring->position + 2 * (ring->table_mask + 1) > ring->room) {
        uint64_t wanted = least(ring->room + least(ring->room, MOST_RECORDS), capacity);
        uint64_t end = pages(ring->room * NS_RECORD);
        if (populate(ring, ring->geometry.records + end, pages(wanted * NS_RECORD) - end)) {
            ring->room = wanted;
            ring->table_mask = table_every(wanted) - 1;
        } else {
            ns_put_word(ring, NS_WRAP, ring->room);
            ring->capacity = ring->room;
        }
    }
}
