/* Write one ring: the file that ncclscope/ring/layout.py describes, byte for byte as
 * ncclscope/ring/writer.py does.
 *
 * Every function may be called from any thread. None aborts, and none waits for anything but another
 * thread that is writing a record or a text. Recording a call allocates nothing. A ring stays mapped
 * until the process ends, since NCCL's threads may still record while it exits. */
#ifndef NCCLSCOPE_RING_H
#define NCCLSCOPE_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The library exports these and nothing else but what NCCL looks up in it. */
#pragma GCC visibility push(default)

#define NS_MAX_COMMS 8192 /* communicators at one time */
#define NS_RECORD 96
#define NS_FIXED 48
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define NS_REASON 320 /* bytes of a text that says why something failed */

enum ns_kind { /* of a text */
    NS_COMM = 1, NS_OP, NS_DTYPE, NS_REDOP, NS_SITE, NS_SHAPE, NS_COMM_UPDATE, NS_ACTIVITY,
};
enum { NS_FIXED_P2P = 1, NS_FIXED_STEP = 2, NS_FIXED_DUMMY = 4, NS_FIXED_REPLAY = 8, NS_FIXED_UNSENT = 16 };
enum { NS_CAPTURED = 1, NS_REPLAYED = 2 };

typedef struct ns_ring ns_ring;

/* The writing end of a communicator; its memory lives as long as the process. */
typedef struct ns_channel {
    ns_ring *ring;
    uint64_t seq;      /* collectives recorded so far */
    uint64_t hash;     /* running hash after them */
    uint64_t p2p;      /* sends and receives recorded so far */
    uint64_t carried;  /* calls that NCCL reported on it, recorded here or by a probe */
    uint32_t index;    /* see ns_index() */
    uint32_t members;  /* number of its members; 0 if unknown */
} ns_channel;

/* Parameters of a call, in the order of the record's 48 bytes. A text is a number of ns_text(). */
typedef struct ns_call {
    uint64_t numel;
    uint32_t shape[4];
    uint16_t comm, op;
    uint8_t dtype, redop, ndim, fixed; /* ndim 255: no shape is known */
    int32_t root;                      /* root or peer; -1 for none */
    uint32_t sizes, site, out;
} ns_call;

/* The collectives of one CUDA graph on one communicator. */
typedef struct ns_part {
    ns_channel *channel;
    uint64_t count;                           /* how many there are */
    const uint64_t *powers;                   /* of the hash's base, from 0 to `count` */
    const uint64_t *hashes;                   /* running hashes from 0 after 0 to `count` calls */
    /* Of the last call: FIXED without numel, and MOMENT, whose state is spelled as in the file. */
    unsigned char repeats[NS_FIXED];
} ns_part;

/* --- time ---------------------------------------------------------------------------------- */

/* Nanoseconds from the begin of CLOCK_MONOTONIC to that of 1970, when this process first asked. */
uint64_t ns_clock(void);
uint64_t ns_now(const ns_ring *ring); /* since 1970, by the clock of a ring; NULL: by ns_clock() */

/* --- a ring ------------------------------------------------------------------------------- */

/* Create a file with reserved space in a directory, or else below the temporary directory.
 * Returns NULL with the reason in `reason`. `capacity` is the number of records, at least 1024. */
ns_ring *ns_ring_create(const char *directory, uint64_t capacity, char reason[NS_REASON]);

/* Take over an open, empty file of the size of its geometry, whose first ranges are reserved (see
 * ns_first_ranges()); the caller keeps the descriptor. `device` says whether it has a device part.
 * `clock` is added to CLOCK_MONOTONIC; 0 means this process's ns_clock(). The caller writes the
 * process description and then ns_ring_publish(). */
ns_ring *ns_ring_map(int descriptor, uint64_t capacity, bool device, uint64_t clock,
                     char reason[NS_REASON]);
void ns_ring_publish(ns_ring *ring); /* write the header; a reader accepts the file from then on */

const char *ns_ring_path(const ns_ring *ring); /* "" for one from ns_ring_map() */
void ns_ring_set_path(ns_ring *ring, const char *path);
uint64_t ns_ring_position(const ns_ring *ring); /* records made so far */
uint64_t ns_ring_refused(const ns_ring *ring);  /* texts not written: the file is detached */

/* Store the process description, a JSON object without NUL bytes; false if it is too long. */
bool ns_describe(ns_ring *ring, const char *json, size_t length);
void ns_store_heartbeat(ns_ring *ring);
void ns_finish(ns_ring *ring); /* record a normal exit; recording still works */
void ns_detach(ns_ring *ring); /* discard everything from here on: the child after a fork */

/* --- texts, lists, communicators ------------------------------------------------------------ */

/* Returns 0 without room. Texts of communicators are written by ns_channel_open() alone, and their
 * updates by ns_channel_update(). */
uint32_t ns_text(ns_ring *ring, enum ns_kind kind, const char *text, size_t length);
bool ns_knows(ns_ring *ring, enum ns_kind kind, const char *text, size_t length);
uint64_t ns_strings_used(const ns_ring *ring); /* bytes of texts written */
uint64_t ns_sites_used(const ns_ring *ring);   /* of these, bytes of call sites */
uint32_t ns_sizes(ns_ring *ring, const int64_t *sizes, size_t count);                /* 0: no room */
bool ns_holds(const ns_ring *ring, uint32_t place); /* whether a list is not overwritten soon */
/* Copy a list; returns its length, or -1 if there is none or it has been overwritten. */
int64_t ns_sizes_of(const ns_ring *ring, uint32_t place, int64_t *sizes, size_t room);
/* Whether a list has these sizes, and is not overwritten soon. */
bool ns_same_sizes(const ns_ring *ring, uint32_t place, const int64_t *sizes, size_t count);
uint32_t ns_place_of_sizes(const void *fixed); /* of a call's packed parameters */

/* Return the writing end of a new communicator, whose text `json` is as in layout.py. One without
 * room has the number 0: its calls are recorded, but not as its own. NULL without memory. */
ns_channel *ns_channel_open(ns_ring *ring, const char *json, size_t length, uint32_t members);
/* The communicator was destroyed: a later one may take its number. May be called again. */
void ns_channel_close(ns_channel *channel);
/* Take back that a channel was closed, unless another one has its number already. */
void ns_channel_reopen(ns_channel *channel);
/* Its number in the file, from 1; 0 without room, or once another communicator has taken it. */
uint32_t ns_index(const ns_channel *channel);
/* Add to a description: `json` has "comm", the channel's number, and what has changed. */
void ns_channel_update(ns_channel *channel, const char *json, size_t length);

/* --- calls ------------------------------------------------------------------------------- */

/* The signature of a call, as ncclscope.model.signature.sign() computes it; `agreed` is what the
 * members must agree in besides, such as the number of elements in decimal. NULL texts are "". */
uint64_t ns_sign(const char *op, const char *dtype, const char *redop, int32_t root,
                 const char *agreed);

/* Record a collective and return its position. `flags`, `group`, `graph` as in layout.py, `state`
 * from 0 to 2; the communicator in `fixed` is replaced by the channel's number. Flags change the
 * signature as model.signature's captured() and replayed() do. */
int64_t ns_post(ns_channel *channel, const void *fixed, uint64_t signature, unsigned state,
                unsigned flags, uint64_t group, uint32_t graph);
int64_t ns_post_p2p(ns_channel *channel, const void *fixed, unsigned state, unsigned flags,
                    uint64_t group, uint32_t graph);
int64_t ns_post_step(ns_ring *ring, uint64_t number, uint64_t held, bool dummy);
/* Record a replay of a graph, one record for each communicator. Returns the position of the first
 * record; -1 for a graph without collectives. `replay` counts the graph's replays. */
int64_t ns_post_replay(ns_ring *ring, const ns_part *parts, size_t count, uint64_t replay);
/* Store the newest activity of one kind at an offset in the header, as activity.py does. Of one ring only one
 * thread may do so at a time: the one with the GIL. `until` is 0 while it lasts. */
void ns_store_activity(ns_ring *ring, uint32_t offset, uint32_t name, uint64_t turn, uint64_t since,
                       uint64_t until, uint64_t number, uint32_t detail);
void ns_advance(ns_ring *ring, int64_t position, unsigned state);
/* Withdraw the newest call of a channel, which raised an exception before it was sent; false if that
 * is no longer possible. */
bool ns_withdraw(ns_channel *channel, int64_t position);
/* Set the peer of a send or receive that was recorded before its peer was known. */
void ns_set_peer(ns_ring *ring, int64_t position, int32_t peer);
void ns_write_table(ns_ring *ring);

/* --- what a probe and the profiler plugin say to each other -------------------------------- */

/* The ring of this process, for the plugin; the one that was set last. NULL if there is none. */
ns_ring *ns_current(void);
void ns_set_current(ns_ring *ring);

/* Between these two this thread's calls into NCCL belong to a record that a probe has made, so
 * the plugin makes none of its own. They nest; the innermost channel counts. NULL means that
 * they belong to no record, as a probe recorded another call in their place. */
void ns_announce(ns_channel *channel);
void ns_conclude(void);
bool ns_announced(ns_channel **channel); /* whether one is open in this thread, and which */

/* Note that NCCL reported a call on a channel; counted in the file for its reader. Of several that
 * belong to one announced call, such as the broadcasts of an uneven all_gather, one counts. */
void ns_carried(ns_channel *channel);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
