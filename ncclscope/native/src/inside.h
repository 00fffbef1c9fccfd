/* What the files of the core share; see ring.h for what they offer. */
#ifndef NCCLSCOPE_INSIDE_H
#define NCCLSCOPE_INSIDE_H

#include "ring.h"

#include <pthread.h>
#include <string.h>

enum {
    NS_PAGE = 4096,
    NS_KINDS = 8,
    NS_MARK_EVERY = 1024,
    /* Offsets in the header. */
    NS_STRINGS_USED = 128,
    NS_HEARTBEAT = 136,
    NS_EXITED = 144,
    NS_GRAPHS_SIZE = 152,
    NS_CARRIED = 1024,
    /* Sizes of entries. */
    NS_ABOUT_HEAD = 20,
    NS_TEXT_HEAD = 8,
    NS_HEAP_HEAD = 16,
    NS_ENTRY = 32, /* of the table and of the marks */
};

/* Sizes of the sections in bytes, except `capacity` and `marks`, and their offsets. */
typedef struct ns_geometry {
    uint64_t capacity, about_size, strings_size, heap_size, marks, graphs_size, device_size;
    uint64_t about, strings, heap, table, mark_area, records, total;
} ns_geometry;

/* A text or a list that has a number. Entries are never removed one by one. */
typedef struct ns_known {
    struct ns_known *next;
    uint64_t hash;
    uint32_t number;
    uint32_t length; /* bytes that follow */
    unsigned char data[];
} ns_known;

enum { NS_BUCKETS = 1024 };

typedef struct ns_dictionary {
    ns_known *buckets[NS_BUCKETS];
    uint32_t count;
} ns_dictionary;

struct ns_ring {
    /* Read and written for each call. */
    pthread_mutex_t lock;
    unsigned char *file; /* the mapped file */
    unsigned char *records;
    uint64_t capacity;
    uint64_t position;
    uint64_t table_mask;
    bool detached;
    /* The rest. */
    ns_geometry geometry;
    uint64_t tables, marked, generation, refused;
    uint64_t strings_used, heap_used;
    uint32_t channel_count;
    ns_channel *channels[NS_MAX_COMMS];
    ns_dictionary texts[NS_KINDS + 1];
    ns_dictionary lists;
    ns_ring *next; /* of this process's rings */
    char path[4096];
};

uint64_t ns_now(void);

static inline void ns_put32(unsigned char *to, uint32_t value)
{
    memcpy(to, &value, sizeof value);
}

static inline void ns_put64(unsigned char *to, uint64_t value)
{
    memcpy(to, &value, sizeof value);
}

/* Unknown to other processes until now: what was stored before becomes visible before it. */
static inline void ns_publish64(unsigned char *to, uint64_t value)
{
    __atomic_store_n((uint64_t *)(void *)to, value, __ATOMIC_RELEASE);
}

ns_geometry ns_geometry_for(uint64_t capacity, bool device);
ns_known *ns_find(const ns_dictionary *in, const void *data, size_t length);
bool ns_remember(ns_dictionary *in, const void *data, size_t length, uint32_t number);
void ns_forget(ns_dictionary *all);
uint32_t ns_text_locked(ns_ring *ring, enum ns_kind kind, const char *text, size_t length);

#endif
