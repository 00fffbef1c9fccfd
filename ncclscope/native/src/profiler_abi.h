/* NCCL's interface for profiler plugins, versions 4 to 7: NCCL 2.26 to 2.32.
 *
 * Versions 5 to 7 have the same functions, and each begins an event with the fields of the one
 * before, so one declaration reads them all. Version 4 has a narrower type, other parameters of
 * init(), and none of the events of the API. The checks at the end hold the offsets, which were
 * taken from NCCL's own type information. */
#ifndef NCCLSCOPE_PROFILER_ABI_H
#define NCCLSCOPE_PROFILER_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { /* types of events; each is a bit of the mask that init() returns */
    NP_GROUP = 1 << 0,       /* launch of the calls of a group, one for each communicator */
    NP_COLL = 1 << 1,        /* a collective when it is launched, with rewritten parameters */
    NP_P2P = 1 << 2,         /* a send or receive when it is launched, with its peer */
    NP_PROXY_OP = 1 << 3,
    NP_PROXY_STEP = 1 << 4,
    NP_PROXY_CTRL = 1 << 5,
    NP_KERNEL_CH = 1 << 6,
    NP_NET_PLUGIN = 1 << 7,
    NP_GROUP_API = 1 << 8,   /* from here on since version 5 */
    NP_COLL_API = 1 << 9,    /* a collective when it is called */
    NP_P2P_API = 1 << 10,    /* a send or receive when it is called, without its peer */
    NP_KERNEL_LAUNCH = 1 << 11,
    NP_CE_COLL = 1 << 12,    /* since version 6 */
    NP_CE_SYNC = 1 << 13,
    NP_CE_BATCH = 1 << 14,
    NP_KERNEL_PHASE = 1 << 15, /* since version 7 */
};

enum { /* states of events that older versions do not know */
    NP_STATE_GROUP_API = 23,    /* and 24: since version 5 */
    NP_STATE_CE = 25,           /* to 30: since version 6 */
    NP_STATE_KERNEL_PHASE = 31, /* since version 7 */
};

struct np_group_api {
    bool captured;
    int depth; /* of ncclGroupStart(); 1 for a call outside of groups, which NCCL puts into one */
};

struct np_coll_api {
    const char *func;
    size_t count; /* as passed to the call */
    const char *dtype;
    int root; /* 0 where the call has none */
    void *stream;
    bool captured;
};

struct np_p2p_api {
    const char *func;
    size_t count;
    const char *dtype;
    void *stream;
    bool captured;
};

struct np_coll {
    uint64_t number; /* of the function's launches on this communicator */
    const char *func;
    const void *input;
    void *output;
    size_t count; /* in bytes, with dtype ncclInt8, of AllGather and Broadcast */
    int root;
    const char *dtype;
    uint8_t channels, warps;
    const char *algorithm, *protocol;
    void *group; /* since version 5; before, it is the event's parent */
};

struct np_p2p {
    const char *func;
    void *buffer;
    const char *dtype;
    size_t count;
    int peer;
    uint8_t channels;
    void *group; /* since version 5; before, it is the event's parent */
};

/* An event of versions 5 to 7. Longer ones follow with fields that are not read here. */
struct np_event {
    uint64_t type;
    void *parent;
    int rank;
    union {
        struct np_group_api group_api;
        struct np_coll_api coll_api;
        struct np_p2p_api p2p_api;
        struct np_coll coll;
        struct np_p2p p2p;
        uint64_t words[11];
    };
};

struct np_event_v4 {
    uint8_t type;
    void *parent;
    int rank;
    uint64_t words[10]; /* np_coll and np_p2p without `group`, or another event's fields */
};

typedef void np_logger(int level, unsigned long subsystems, const char *file, int line,
                       const char *format, ...);
enum { NP_LOG_WARN = 2, NP_LOG_INFO = 3 };
enum { NP_LOG_INIT = 1 };

/* Each function returns 0, or an error that NCCL ignores, except for init's. */
struct np_profiler { /* versions 5 to 7 */
    const char *name;
    int (*init)(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks,
                int rank, np_logger *log);
    int (*start)(void *context, void **handle, struct np_event *event);
    int (*stop)(void *handle);
    int (*state)(void *handle, int state, void *arguments);
    int (*finalize)(void *context);
};

struct np_profiler_v4 {
    const char *name;
    int (*init)(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
                int rank, np_logger *log);
    int (*start)(void *context, void **handle, struct np_event_v4 *event);
    int (*stop)(void *handle);
    int (*state)(void *handle, int state, void *arguments);
    int (*finalize)(void *context);
};

_Static_assert(sizeof(struct np_event) == 112, "version 5");
_Static_assert(sizeof(struct np_event_v4) == 104, "version 4");
_Static_assert(offsetof(struct np_event, coll_api.root) == 48, "versions 5 to 7");
_Static_assert(offsetof(struct np_event, coll_api.captured) == 64, "versions 5 to 7");
_Static_assert(offsetof(struct np_event, p2p_api.captured) == 56, "versions 5 to 7");
_Static_assert(offsetof(struct np_event, coll.dtype) == 72, "versions 4 to 7");
_Static_assert(offsetof(struct np_event, coll.group) == 104, "versions 5 to 7");
_Static_assert(offsetof(struct np_event, p2p.peer) == 56, "versions 4 to 7");
_Static_assert(offsetof(struct np_event, p2p.group) == 64, "versions 5 to 7");
_Static_assert(offsetof(struct np_event_v4, words) == 24, "version 4");

#endif
