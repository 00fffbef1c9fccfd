/* Texts and lists of sizes: each is stored once and gets a number. */
#include "inside.h"
#include "sign.h"

#include <stdlib.h>

enum { LISTS_KEPT = 4096 };
static const uint64_t longest = (1 << 24) - 1; /* as layout.LONGEST_ENTRY */
static const uint64_t heap_end = (uint64_t)8 << 32;

static uint64_t hash_of(const void *data, size_t length)
{
    const unsigned char *bytes = data;
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (size_t at = 0; at < length; at++)
        hash = (hash ^ bytes[at]) * 0x100000001b3;
    return hash;
}

ns_known *ns_find(const ns_dictionary *in, const void *data, size_t length)
{
    uint64_t hash = hash_of(data, length);
    ns_known *known = in->buckets[hash % NS_BUCKETS];
    while (known
           && (known->hash != hash || known->length != length
               || memcmp(known->data, data, length) != 0))
        known = known->next;
    return known;
}

bool ns_remember(ns_dictionary *in, const void *data, size_t length, uint32_t number)
{
    ns_known *known = malloc(sizeof *known + length);
    if (!known)
        return false;
    known->hash = hash_of(data, length);
    known->length = (uint32_t)length;
    known->number = number;
    memcpy(known->data, data, length);
    known->next = in->buckets[known->hash % NS_BUCKETS];
    in->buckets[known->hash % NS_BUCKETS] = known;
    in->count++;
    return true;
}

void ns_forget(ns_dictionary *all)
{
    for (size_t at = 0; at < NS_BUCKETS; at++) {
        ns_known *known = all->buckets[at];
        while (known) {
            ns_known *next = known->next;
            free(known);
            known = next;
        }
        all->buckets[at] = NULL;
    }
    all->count = 0;
}

static void store_text(unsigned char *to, enum ns_kind kind, const ns_entry *entry,
                       const char *text, size_t text_length, const char *tail)
{
    unsigned char *data = to + NS_TEXT_HEAD;
    size_t tail_length = strlen(tail);
    memcpy(data, text, text_length);
    memcpy(data + text_length, tail, tail_length);
    memset(data + text_length + tail_length, ' ', entry->length - text_length - tail_length);
    /* As layout.checksum(). */
    uint32_t start = (uint32_t)kind << 24 ^ (entry->number & 0xFFFFFF);
    ns_put32(to, entry->length | (uint32_t)kind << 24);
    ns_put32(to + 4, ns_crc32(start, data, entry->length));
}

/* Store a text twice: the reader of a damaged one takes the other. */
void ns_overwrite(ns_ring *ring, enum ns_kind kind, const ns_entry *entry, const char *text,
                  size_t text_length, const char *tail)
{
    unsigned char *to = ring->file + ring->geometry.strings + entry->offset;
    store_text(to + ring->geometry.strings_size, kind, entry, text, text_length, tail);
    store_text(to, kind, entry, text, text_length, tail);
}

bool ns_append(ns_ring *ring, enum ns_kind kind, const char *text, size_t text_length,
               uint64_t length, ns_entry *entry)
{
    uint64_t whole = ring->geometry.strings_size, end, own;
    uint64_t most = kind == NS_SHAPE ? NS_MOST_SHAPES : kind == NS_SITE ? NS_MOST_SITES : whole;
    if (length > longest)
        return false;
    end = ring->strings_used + (NS_TEXT_HEAD + length + 7) / 8 * 8;
    own = ring->used[kind] + end - ring->strings_used;
    if (end > whole || own > most || !ns_room_strings(ring, end))
        return false;
    *entry = (ns_entry){ring->strings_used, ++ring->counts[kind], (uint32_t)length};
    ns_overwrite(ring, kind, entry, text, text_length, "");
    ring->strings_used = end;
    ring->used[kind] = own;
    ns_put_word(ring, NS_STRINGS_USED, end);
    return true;
}

uint32_t ns_text(ns_ring *ring, enum ns_kind kind, const char *text, size_t length)
{
    uint32_t number = 0;
    ns_entry entry;
    if ((int)kind < NS_COMM || (int)kind > NS_KINDS || kind == NS_COMM || kind == NS_COMM_UPDATE)
        return 0;
    pthread_mutex_lock(&ring->lock);
    const ns_known *found = ns_find(&ring->texts[kind], text, length);
    if (found) {
        number = found->number;
    } else if (ring->detached) {
        ring->refused++;
    } else if (ns_append(ring, kind, text, length, length, &entry)) {
        number = entry.number;
        ns_remember(&ring->texts[kind], text, length, number);
    }
    pthread_mutex_unlock(&ring->lock);
    return number;
}

bool ns_knows(ns_ring *ring, enum ns_kind kind, const char *text, size_t length)
{
    if ((int)kind < NS_COMM || (int)kind > NS_KINDS)
        return false;
    pthread_mutex_lock(&ring->lock);
    bool known = ns_find(&ring->texts[kind], text, length) != NULL;
    pthread_mutex_unlock(&ring->lock);
    return known;
}

uint64_t ns_strings_used(const ns_ring *ring)
{
    return ring->strings_used;
}

uint64_t ns_sites_used(const ns_ring *ring)
{
    return ring->used[NS_SITE];
}

/* Whether a list is in the newer half of the heap, a circular buffer. */
static bool holds(const ns_ring *ring, uint32_t place)
{
    uint64_t begin = ((uint64_t)place - 1) * 8;
    return !place
           || (ring->heap_used >= begin
               && ring->heap_used - begin < ring->geometry.heap_size / 2);
}

bool ns_holds(const ns_ring *ring, uint32_t place)
{
    return holds(ring, place);
}

static uint32_t append_list(ns_ring *ring, const int64_t *sizes, size_t count)
{
    uint64_t room = ring->geometry.heap_size, length = 8 * (uint64_t)count;
    uint64_t size = NS_HEAP_HEAD + length, start = ring->heap_used;
    if (count > room || size > room / 4)
        return 0;
    if (start % room + size > room) /* entries do not wrap around the end */
        start += room - start % room;
    if (!ns_room_heap(ring, start % room + size))
        return 0;
    if (start >= heap_end / room * room) {
        start = 0;
        ns_forget(&ring->lists);
    }
    if (ring->lists.count >= LISTS_KEPT)
        ns_forget(&ring->lists);
    ns_known *known = ns_find(&ring->lists, sizes, length);
    uint32_t place = (uint32_t)(start / 8 + 1);
    unsigned char *to = ring->file + ring->geometry.heap + start % room;
    ring->heap_used = start + size;
    /* Invalid while it is written, so that no reader sees the old entry here. */
    ns_publish64(to, 0);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    ns_put32(to + 8, (uint32_t)count);
    ns_put32(to + 12, ns_crc32((uint32_t)(start + 1), sizes, length));
    memcpy(to + NS_HEAP_HEAD, sizes, length);
    ns_publish64(to, start + 1);
    if (known)
        known->number = place;
    else
        ns_remember(&ring->lists, sizes, length, place);
    return place;
}

uint32_t ns_sizes(ns_ring *ring, const int64_t *sizes, size_t count)
{
    uint32_t place = 0;
    pthread_mutex_lock(&ring->lock);
    const ns_known *known = ns_find(&ring->lists, sizes, 8 * count);
    if (known && holds(ring, known->number))
        place = known->number;
    else if (ring->detached)
        ring->refused++;
    else
        place = append_list(ring, sizes, count);
    pthread_mutex_unlock(&ring->lock);
    return place;
}

/* Find a list; returns its length, or -1 if there is none or it has been overwritten. */
static int64_t find_list(const ns_ring *ring, uint32_t place, const unsigned char **list)
{
    if (!place || ring->detached)
        return -1;
    uint64_t begin, absolute = ((uint64_t)place - 1) * 8;
    uint32_t count;
    uint64_t offset = absolute % ring->geometry.heap_size;
    const unsigned char *from = ring->file + ring->geometry.heap + offset;
    if (offset + NS_HEAP_HEAD > ring->heap_room)
        return -1;
    memcpy(&begin, from, sizeof begin);
    memcpy(&count, from + 8, sizeof count);
    if (begin != absolute + 1 || offset + NS_HEAP_HEAD + 8 * (uint64_t)count > ring->heap_room)
        return -1;
    *list = from + NS_HEAP_HEAD;
    return count;
}

int64_t ns_sizes_of(const ns_ring *ring, uint32_t place, int64_t *sizes, size_t room)
{
    const unsigned char *list;
    int64_t count = find_list(ring, place, &list);
    if (count > 0)
        memcpy(sizes, list, 8 * ((size_t)count < room ? (size_t)count : room));
    return count;
}

bool ns_same_sizes(const ns_ring *ring, uint32_t place, const int64_t *sizes, size_t count)
{
    const unsigned char *list;
    return holds(ring, place) && find_list(ring, place, &list) == (int64_t)count
           && memcmp(list, sizes, 8 * count) == 0;
}

uint32_t ns_place_of_sizes(const void *fixed)
{
    uint32_t place;
    memcpy(&place, (const unsigned char *)fixed + offsetof(ns_call, sizes), sizeof place);
    return place;
}
