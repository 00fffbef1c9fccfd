/* Calls that the program may still wait for. */
#ifndef NCCLSCOPE_KEPT_H
#define NCCLSCOPE_KEPT_H

#include <Python.h>

#include "ring.h"

#include <stdbool.h>

enum { COMPLETED = 2 }; /* as State.COMPLETED */

/* Return an entry for works.pending, or NULL with an error set. */
PyObject *ns_kept_new(PyObject *work, PyObject *handle, ns_ring *ring, int64_t position,
                      bool waits);
bool ns_is_kept(PyObject *object);

/* Record that a call has completed whose wait() has returned; false if that does not mean it, or if the
 * entry is not of this work. */
bool ns_kept_completed(PyObject *kept, PyObject *work);

bool ns_kept_ready(void); /* false with an error set */

#endif
