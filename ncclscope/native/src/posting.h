/* How a method's calls are recorded without Python. */
#ifndef NCCLSCOPE_POSTING_H
#define NCCLSCOPE_POSTING_H

#include <Python.h>

#include "arguments.h"
#include "ring.h"

#include <stdbool.h>

bool ns_is_method(PyObject *object);

/* A call that was recorded without Python. */
typedef struct ns_recorded {
    int64_t position;
    PyObject *handle; /* a new reference */
    ns_channel *channel;
    int waits; /* as Handle.waits; -1 if it depends on the tensor */
} ns_recorded;

/* Record a call if that takes no Python. Otherwise return false with no error set: Python meets the same
 * trouble and says so. */
bool ns_record_call(PyObject *method, const ns_arguments *given, ns_recorded *call);

#endif
