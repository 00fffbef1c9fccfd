/* The patch of a probe, as what replaces a function in C uses it: see ncclscope_patches/probes/probe.py. */
#ifndef NCCLSCOPE_REPLACED_H
#define NCCLSCOPE_REPLACED_H

#include <Python.h>

#include "arguments.h"
#include "posting.h"

#include <stdbool.h>

typedef struct ns_patch {
    PyObject *patch;
    PyObject *state; /* its __dict__ */
} ns_patch;

bool ns_patch_take(ns_patch *to, PyObject *patch); /* false with an error set */
void ns_patch_drop(ns_patch *of);
bool ns_patch_active(const ns_patch *of); /* maybe with an error set */

/* Give the probe's own error to Patch.fail(); false, with an error set, if the program gets one. */
bool ns_patch_contains(const ns_patch *of);

/* Let Python withdraw the record of a call that raised an exception, which stays set. */
void ns_patch_raised(const ns_patch *of, const ns_recorded *call);

/* As posted_calls.on_cpu(); -1 for an error. */
int ns_on_cpu(const ns_arguments *given);

#endif
