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

/* Return an int from 0 to what a record holds, the nearest one; maybe with an error set. */
uint64_t ns_bounded(PyObject *number);
PyObject *ns_recorder(PyObject *module, PyObject *args);
bool ns_record_ready(void); /* false with an error set */
PyObject *ns_posting(PyObject *module, PyObject *args);
PyObject *ns_setter(PyObject *module, PyObject *function);
PyObject *ns_note_redop(PyObject *module, PyObject *args);
PyObject *ns_take_noted(PyObject *module, PyObject *options);
PyObject *ns_use_capturing(PyObject *module, PyObject *function);
PyObject *ns_use_redops(PyObject *module, PyObject *names);
PyObject *ns_post_of(PyObject *module, PyObject *args);
bool ns_posting_ready(void); /* false with an error set */
PyObject *ns_replaced(PyObject *module, PyObject *args);
PyObject *ns_grouped(PyObject *module, PyObject *args);
PyObject *ns_waited(PyObject *module, PyObject *args);
PyObject *ns_noted_method(PyObject *module, PyObject *args);
bool ns_replaced_ready(void); /* false with an error set */
PyObject *ns_kernel(PyObject *module, PyObject *args);
bool ns_kernel_ready(void); /* false with an error set */

extern PyTypeObject *ns_ring_type, *ns_channel_type, *ns_part_type;

#endif
