/* The NCCL group that is open on a thread: see scope.py. All return false with an error set. */
#ifndef NCCLSCOPE_GROUPED_H
#define NCCLSCOPE_GROUPED_H

#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

bool ns_group_open(PyObject *groups, uint64_t *number); /* 0 without a group */
bool ns_group_enter(PyObject *groups, PyObject *numbers);
bool ns_group_leave(PyObject *groups);

#endif
