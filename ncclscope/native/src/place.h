/* Find the line of the program that enqueues a call: see ncclscope/tracing/callsite.py. */
#ifndef NCCLSCOPE_PLACE_H
#define NCCLSCOPE_PLACE_H

#include <Python.h>

/* Make callsite's tables known: a function that returns role and whether the code object is kept, the role
 * of plumbing, and whether frames.h may be used. */
PyObject *ns_places(PyObject *module, PyObject *args);

/* Return the call site of the running Python frame, a borrowed tuple (id of the code, instruction)
 * as callsite.locate() has it. NULL without an exception if this interpreter or this place needs
 * Python to say. */
PyObject *ns_place_here(void);

/* As callsite.elsewhere: from now on, or no longer, the site of this frame is that of threads without a frame
 * of the program. */
PyObject *ns_elsewhere(PyObject *module, PyObject *begins);

/* Return it to Python: from the frames themselves if it is known already, or by their objects. */
PyObject *ns_place_by(PyObject *module, PyObject *frames);

#endif
