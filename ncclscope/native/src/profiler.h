/* The parts of the NCCL profiler plugin; see profiler.c for what it does. */
#ifndef NCCLSCOPE_PROFILER_H
#define NCCLSCOPE_PROFILER_H

#include <pthread.h>
#include <stdatomic.h>

#include "inside.h"
#include "profiler_abi.h"

#define NS_MASK (NP_COLL_API | NP_P2P_API | NP_P2P) /* P2P: only there is the peer known */
#define NS_MASK_V4 (NP_COLL | NP_P2P)
#define NS_NAME 64 /* bytes of a communicator's name */

/* One rank of one NCCL communicator in this process. Its memory is never freed, so that a late
 * callback finds a context that is not its own instead of nothing. */
typedef struct ns_comm {
    _Atomic uint64_t serial; /* of the context that names it now; 0 while it is free */
    uint64_t hash;           /* the same on all members */
    int ranks, rank, version;
    bool records; /* false where its calls cannot be compared, or only the next plugin wants them */
    bool late;    /* calls were made on it before recording was armed */
    bool chained;
    void *next; /* context of the next plugin */
    _Atomic uint64_t era; /* in which its ring was chosen; see ns_rings_era() */
    ns_ring *ring;
    _Atomic(ns_channel *) bound; /* the channel of the probe that records calls on it */
    _Atomic(ns_channel *) own;   /* our channel, opened when the first call needs it */
    _Atomic bool full;           /* its ring has no room for another communicator */
    _Atomic bool replays;        /* noted that replays of its captured calls are not seen */
    _Atomic uint32_t numbered;   /* functions whose first recorded call has been numbered */
    char name[NS_NAME];
} ns_comm;

/* --- profiler_comms.c: contexts ------------------------------------------------------------ */

ns_comm *ns_comm_new(void **context); /* NULL when 65,536 exist; hold ns_lock */
ns_comm *ns_comm_of(void *context);   /* NULL for one that is not ours or was finalized */
void ns_comm_publish(ns_comm *comm, void *context);
void ns_comm_retire(ns_comm *comm);
void ns_comms_forget(void); /* all, in the child after a fork */
/* Whether another rank of the same communicator records in this ring; hold ns_lock. */
bool ns_comm_shares(const ns_comm *comm, const ns_ring *ring);
ns_channel *ns_comm_channel(ns_comm *comm); /* NULL where there is no ring or no room */
void ns_comm_bind(ns_comm *comm, ns_channel *channel);
void ns_comm_close(ns_comm *comm);

extern pthread_mutex_t ns_lock; /* for what happens once for a communicator, never for a call */

/* --- profiler_calls.c: calls --------------------------------------------------------------- */

void ns_group_entered(const struct np_group_api *group);
/* Note which of all calls of a function the first recorded one is, where earlier ones were not. */
void ns_number(ns_comm *comm, const char *func, uint64_t number);
void ns_collective(ns_comm *comm, const char *func, size_t count, const char *dtype, int root,
                   bool captured);
/* Returns the number by which ns_transfer_peer() finds the record; 0 when none was made. */
uint64_t ns_transfer(ns_comm *comm, const char *func, size_t count, const char *dtype, int peer,
                     bool captured);
void ns_transfer_peer(uint64_t transfer, int peer);
void ns_transfer_keep(uint64_t transfer, void *next); /* the next plugin's handle of it */
void *ns_transfer_next(uint64_t transfer);
void ns_calls_forget(void);

/* --- profiler_rings.c: which ring, heartbeat, end -------------------------------------------- */

enum ns_mode { NS_OFF, NS_ON, NS_DORMANT };
enum ns_mode ns_rings_mode(void); /* as the environment says; hold ns_lock */
bool ns_rings_armed(void);        /* whether NCCL has been asked for our events; hold no lock */
bool ns_rings_recording(void);    /* whether calls are recorded now */
uint64_t ns_rings_era(void);      /* counts how often a dormant plugin has been disarmed */
void ns_rings_watch(const int *mask); /* NCCL's mask: recording is disarmed where it is zero */
/* The ring for a communicator, made at need; NULL if it cannot be. Hold ns_lock. */
ns_ring *ns_rings_choose(ns_comm *comm);
bool ns_rings_own(const ns_ring *ring); /* whether we made it */
/* The ranks of the job if they are known and this communicator spans them; else 0. */
int ns_rings_world(const ns_comm *comm);
void ns_rings_note_full(const ns_ring *ring);

/* --- profiler_about.c: the process description ------------------------------------------------ */

typedef struct ns_about {
    int rank, world, api, nccl; /* nccl: version as ncclGetVersion() spells it, 0 if unknown */
    uint64_t armed_ns;          /* when a dormant plugin began to record, 0 if it never slept */
    bool full;                  /* further communicators found no room */
} ns_about;

size_t ns_about_json(const ns_about *about, char *json, size_t room);
size_t ns_untraced_json(const ns_about *about, const char *why, bool final, char *json, size_t room);
const char *ns_variable(const char *name); /* NCCLSCOPE_<name> or NCCL_SCOPE_<name>; "" if unset */
bool ns_rank_of_launcher(int *rank, int *world);

/* --- profiler_untraced.c: a process without a ring -------------------------------------------------- */

typedef struct ns_untraced {
    const ns_about *about;
    int file; /* -1 where no place takes a page */
    char path[NS_PATH], pointer[NS_PATH]; /* empty if there is none */
} ns_untraced;

/* Leave a file that says that this process is not recorded, before its ring is made. */
void ns_untraced_begin(ns_untraced *untraced, const char *directory, const ns_about *about);
void ns_untraced_keep(ns_untraced *untraced, const char *why); /* there is no ring */
void ns_untraced_remove(ns_untraced *untraced);                /* there is one */

/* --- profiler_chain.c: the plugin that was configured before ----------------------------------- */

void ns_chain_open(int version, np_logger *log); /* once; hold ns_lock */
bool ns_chain_exists(void);
int ns_chain_mask(void);
/* Its mask for a communicator that it has accepted, else 0. */
int ns_chain_init(ns_comm *comm, const char *name, int nodes, np_logger *log);
void ns_chain_watch(int *mask, int own); /* NCCL's mask, and our bits of it */
void *ns_chain_start(const ns_comm *comm, uint64_t type, const void *event, void *parent);
void ns_chain_stop(void *handle);
void ns_chain_state(void *handle, int state, void *arguments);
void ns_chain_finalize(ns_comm *comm);

#endif
