/* What Python sees of side.c; the vector width is the module's. */
#ifndef NNDIFF_SIDE_PYTHON_H
#define NNDIFF_SIDE_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "native.h"

extern const char side_measure_doc[], side_hashes_doc[], side_sketch_doc[], side_hash_rows_doc[], side_same_doc[],
    side_content_doc[];

PyObject *side_measure(const Kernels *, PyObject *args);
PyObject *side_hashes(const Kernels *, PyObject *args);
PyObject *side_sketch(const Kernels *, PyObject *args);
PyObject *side_hash_rows(const Kernels *, PyObject *args);
PyObject *side_content(const Kernels *, PyObject *args);
PyObject *side_same(PyObject *module, PyObject *args);

#endif
