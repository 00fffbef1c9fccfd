/* How a method's calls are recorded without Python. */
#ifndef NCCLSCOPE_POSTING_H
#define NCCLSCOPE_POSTING_H

#include <Python.h>

#include "ring.h"

#include <stdbool.h>

bool ns_is_method(PyObject *object);

/* Record a call if that takes no Python. Return its position, a new reference to the handle, and the
 * communicator's channel; else -1, with no error set: Python meets the same trouble and says so. */
int64_t ns_record_call(PyObject *method, PyObject *args, PyObject *keywords, PyObject **handle,
                       ns_channel **channel);

#endif
