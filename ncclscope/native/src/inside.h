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
    NS_REUSED_FROM = 512, /* communicators from which on numbers are reused */
    NS_DEVICE_COMMS = 512,
    NS_FIRST_RECORDS = 1024, /* for which a new file has room */
    NS_MOST_SHAPES = 32 * NS_PAGE,
    NS_MOST_SITES = 48 * NS_PAGE,
    /* Offsets in the header. */
    NS_HEADER_CHECK = 88,
    NS_MIRROR = 5 * NS_PAGE,
    NS_COMPLEMENTS = 1024, /* from a word to its complement */
    NS_WORDS = 128,
    NS_STRINGS_USED = 128,
    NS_HEARTBEAT = 136,
    NS_EXITED = 144,
    NS_ABOUTS = 152,
    NS_WRAP = 168,
    NS_WORDS_END = 192,
    NS_COUNT = 192,
    NS_REUSED = 208, /* a word behind the others */
    /* Sizes of entries. */
    NS_ABOUT_HEAD = 20,
    NS_TEXT_HEAD = 8,
    NS_HEAP_HEAD = 16,
    NS_ENTRY = 32, /* of the table and of the marks */
    NS_CARRIED = 8,
    NS_SLOT = 128,
};

/* Sizes of the sections in bytes, except `capacity` and `marks`, and their offsets. */
typedef struct ns_geometry {
    uint64_t capacity, about_size, strings_size, heap_size, marks, graphs_size, device_size;
    uint64_t about, mirror, strings, heap, table, mark_area, carried, records, graphs, device, total;
} ns_geometry;

/* A part of the file: offset and size in bytes. */
typedef struct ns_range {
    uint64_t begin, size;
} ns_range;

enum { NS_FIRST_RANGES = 8 };

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

/* An entry of the strings part that can be overwritten. */
typedef struct ns_entry {
    uint64_t offset; /* in the strings part */
    uint32_t number; /* within its kind */
    uint32_t length; /* bytes of its data, padded */
} ns_entry;

/* A channel and where its texts are; its successor takes over both. */
typedef struct ns_opened {
    ns_channel channel;
    ns_entry text;
    ns_entry *updates;
    size_t update_count; /* entries, of which the first `update_next` are passed: readers apply */
    size_t update_next;  /* updates in the order of the file */
    bool closed;
    struct ns_opened *next; /* of the closed ones, or of the retired ones */
} ns_opened;

struct ns_ring {
    /* Read and written for each call. */
    pthread_mutex_t lock;
    unsigned char *file; /* the mapped file */
    unsigned char *records;
    uint64_t capacity; /* slots that are used */
    uint64_t position;
    uint64_t table_mask;
    uint64_t clock;
    bool detached;
    /* The rest. */
    ns_geometry geometry;
    /* What is reserved: records, bytes of two parts, entries of two parts. */
    uint64_t room, strings_room, heap_room, table_room, carried_room;
    uint64_t tabled; /* records made when the newest table was written */
    uint64_t tables, marked, generation, refused, reused;
    uint64_t strings_used, heap_used;
    uint64_t used[NS_KINDS + 1];   /* bytes of texts of each kind */
    uint32_t counts[NS_KINDS + 1]; /* their number */
    uint32_t channel_count;
    ns_opened *channels[NS_MAX_COMMS];
    ns_opened *closed, **last_closed; /* in the order in which they were closed */
    ns_opened *retired;
    ns_dictionary texts[NS_KINDS + 1];
    ns_dictionary lists;
    ns_ring *next; /* of this process's rings */
    char path[4096]; /* NS_PATH */
};

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

/* Store a word and its complement in a ring whose lock is held, in the mirror first. */
static inline void ns_put_word(ns_ring *ring, uint64_t offset, uint64_t value)
{
    for (unsigned char *page = ring->file + NS_MIRROR;; page = ring->file) {
        ns_publish64(page + offset + NS_COMPLEMENTS, ~value);
        ns_publish64(page + offset, value);
        if (page == ring->file)
            return;
    }
}

/* --- file.c: where files go ----------------------------------------------------------------------- */

enum { NS_PLACES = 4, NS_FOLDER = 3072, NS_PATH = 4096 };

/* A new file: its bytes, those that must be free before, and what is reserved. */
typedef struct ns_size {
    uint64_t total, free;
    const ns_range *ranges;
    size_t count;
} ns_size;

/* Find one of the places of a file: the requested directory is number 0; behind it come this user's
 * in /dev/shm, for temporary files and in the working directory. False where there is none. */
bool ns_place(const char *directory, int number, char place[NS_FOLDER]);
/* Open a new file of this process with reserved ranges; -1 with errno. */
int ns_new_file(const char *directory, const char *suffix, const ns_size *size, char path[NS_PATH]);
/* Leave a file of one line in the requested directory, which names a file that is elsewhere. */
void ns_leave_pointer(const char *directory, const char *path, char pointer[NS_PATH]);
bool ns_may_write(uint64_t size); /* a file of that size; the attempt would kill the process */

/* --- room.c: what is reserved of a file --------------------------------------------------------- */

bool ns_grows(void); /* whether the kernel can reserve pages of a map; if not, all are at creation */
ns_geometry ns_geometry_for(uint64_t capacity, bool device);
/* The ranges of a new file that are reserved at creation; returns how many. */
size_t ns_first_ranges(const ns_geometry *geometry, ns_range ranges[NS_FIRST_RANGES]);
void ns_room_open(ns_ring *ring); /* of a new ring, whose geometry is known */
/* The next ones reserve more at need, in a ring whose lock is held; false without room. */
bool ns_room_strings(ns_ring *ring, uint64_t size);
bool ns_room_heap(ns_ring *ring, uint64_t size);
bool ns_room_comm(ns_ring *ring, uint32_t number);
/* Reserve slots where they become scarce; without room the first ones are used again. */
void ns_room_records(ns_ring *ring);

/* --- ring.c ------------------------------------------------------------------------------------- */

/* Store the state of a communicator in one half of the table of a ring whose lock is held. */
void ns_write_channel(ns_ring *ring, uint64_t half, const ns_channel *channel);

/* --- text.c ------------------------------------------------------------------------------------- */

ns_known *ns_find(const ns_dictionary *in, const void *data, size_t length);
bool ns_remember(ns_dictionary *in, const void *data, size_t length, uint32_t number);
void ns_forget(ns_dictionary *all);
/* Append an entry of `length` bytes to a ring whose lock is held: the text, padded with blanks.
 * False without room. */
bool ns_append(ns_ring *ring, enum ns_kind kind, const char *text, size_t text_length,
               uint64_t length, ns_entry *entry);
/* Store a text and its tail into an entry, padded with blanks. */
void ns_overwrite(ns_ring *ring, enum ns_kind kind, const ns_entry *entry, const char *text,
                  size_t text_length, const char *tail);

#endif
