/* Find the line of the program that enqueues a call: see ncclscope/tracing/callsite.py. */
#ifndef NCCLSCOPE_PLACE_H
#define NCCLSCOPE_PLACE_H

#include <Python.h>

/* Make callsite's tables known; `classify` returns role and whether the code object is kept. */
PyObject *ns_places(PyObject *module, PyObject *classify);

/* Return the call site of the running Python frame, a borrowed tuple (id of the code, instruction)
 * as callsite.locate() has it. NULL without an exception if this interpreter or this place needs
 * Python to say. */
PyObject *ns_place_here(void);

#endif
