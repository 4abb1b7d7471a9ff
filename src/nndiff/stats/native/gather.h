/* Getting pairs together that can be read in place: with thousands of them, Python would take longer than C. */
#ifndef NNDIFF_GATHER_H
#define NNDIFF_GATHER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "native.h"

/* What a batch is told of each pair; native_engine.py packs the same. */
typedef struct {
    int32_t ref_type, cand_type, ref_fd, cand_fd;
    int64_t ref_place, cand_place, count;
    double atol, rtol;
} Packed;

extern const char gather_doc[], know_doc[];

PyObject *gather(PyObject *module, PyObject *args);
PyObject *know(PyObject *module, PyObject *args);

#endif
