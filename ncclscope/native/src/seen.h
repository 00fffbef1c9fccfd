/* Calls that were recorded before, by call site and parameters. A lookup creates no object and hashes
 * no tuple, which takes as long as the record itself. */
#ifndef NCCLSCOPE_SEEN_H
#define NCCLSCOPE_SEEN_H

#include <Python.h>

#include <stdint.h>

#include "ring.h"

typedef struct ns_seen ns_seen;

enum { NS_MOST_SIZES = 64 };

/* Parameters that a plan reads; `redop` is NULL if the operation has none. All are borrowed. */
typedef struct ns_planned {
    PyObject *op, *shape, *dtype, *redop;
    Py_ssize_t size_count; /* of a v-collective; else 0 */
    int64_t sizes[NS_MOST_SIZES];
} ns_planned;

/* What the writer needs of a call: see Handle.templates. */
typedef struct ns_packed {
    const void *fixed;
    uint64_t signature; /* 0 for a send or receive */
} ns_packed;

/* Return a table, or NULL without memory: then nothing is ever found. */
ns_seen *ns_seen_new(void);
void ns_seen_free(ns_seen *seen);

/* Return a call's packed parameters; `fixed` is NULL if they are not known. No error is set.
 * `place` must be of ns_place_here(), whose results live as long as the process. */
ns_packed ns_seen_find(const ns_seen *seen, const ns_ring *ring, const ns_planned *call,
                       const PyObject *place);
void ns_seen_add(ns_seen *seen, const ns_planned *call, const PyObject *place, ns_packed packed);

#endif
