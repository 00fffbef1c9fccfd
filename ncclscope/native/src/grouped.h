/* The thread that posts, and the NCCL group that is open on it: see scope.py. */
#ifndef NCCLSCOPE_GROUPED_H
#define NCCLSCOPE_GROUPED_H

#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

PyObject *ns_use_threads(PyObject *module, PyObject *args);
PyObject *ns_thread_number(PyObject *module, PyObject *none);
unsigned ns_thread_flags(void); /* the number of this thread, as flags of a record; 0: not known */

/* All return false with an error set. */
bool ns_group_open(PyObject *groups, uint64_t *number); /* 0 without a group */
bool ns_group_enter(PyObject *groups, PyObject *numbers);
bool ns_group_leave(PyObject *groups);

#endif
