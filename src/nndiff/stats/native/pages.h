/* Parts of files as buffers of Python's, that survive a file that is cut. */
#ifndef NNDIFF_PAGES_H
#define NNDIFF_PAGES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec pages_spec;

#endif
