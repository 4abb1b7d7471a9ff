/* What Python sees of places.c. */
#ifndef NNDIFF_PLACES_H
#define NNDIFF_PLACES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "native.h"

extern const char places_doc[], ranks_doc[];

PyObject *places(PyObject *module, PyObject *args);
PyObject *ranks(PyObject *module, PyObject *args);

#endif
