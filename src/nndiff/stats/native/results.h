/* From an item to an instance of metrics.Metrics. */
#ifndef NNDIFF_RESULTS_H
#define NNDIFF_RESULTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "work.h"

/* An instance of the class, None where squares overflowed, (errno, side) where reading failed. */
PyObject *result_of(const Item *, PyTypeObject *class, PyObject *names, PyObject *shape);

#endif
