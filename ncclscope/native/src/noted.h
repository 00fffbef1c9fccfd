/* Activities, the newest of each kind in the header: see ncclscope/ring/activity.py. */
#ifndef NCCLSCOPE_NOTED_H
#define NCCLSCOPE_NOTED_H

#include <Python.h>

#include "arguments.h"
#include "ring.h"

#include <stdint.h>

typedef struct ns_noted ns_noted; /* how the calls of one method are noted */

/* One begin of an activity. */
typedef struct ns_note {
    PyObject *slot, *begun; /* new references; `begun` is NULL for one that C ends */
    uint64_t turn, since, number, detail;
} ns_note;

PyObject *ns_activity_new(PyObject *ring, PyObject *args); /* a method of Ring */

/* `read` returns detail and number from args and kwargs, or is the pair itself; `open` returns the slot. NULL
 * with an error set. */
ns_noted *ns_noted_new(PyObject *read, PyObject *open);
int ns_noted_visit(const ns_noted *noted, visitproc visit, void *arg);
void ns_noted_free(ns_noted *noted);
void ns_noted_forget(ns_noted *noted); /* the slot: another ring has taken over */

/* Return 1 if the activity has begun, 0 if it is not to be noted, -1 with an error set. */
int ns_note_begin(ns_noted *noted, const ns_arguments *given, ns_note *to);
bool ns_note_end(ns_note *note); /* false with an error set */

bool ns_noted_ready(void); /* false with an error set */

#endif
