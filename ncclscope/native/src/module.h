/* Objects of the Python extension. */
#ifndef NCCLSCOPE_MODULE_H
#define NCCLSCOPE_MODULE_H

#include <Python.h>

#include "ring.h"

typedef struct Ring {
    PyObject_HEAD
    ns_ring *ring;
    PyObject *capture; /* takes captured calls; see RingWriter.capture */
} Ring;

typedef struct Channel {
    PyObject_HEAD
    ns_channel *channel;
} Channel;

typedef struct Part {
    PyObject_HEAD
    PyObject *owner; /* the Channel */
    uint64_t *numbers;
    ns_part part;
} Part;

extern PyTypeObject *ns_ring_type, *ns_channel_type, *ns_part_type;

#endif
