/* The Python module: batches of pairs, the vector widths of this machine. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "batch.h"
#include "gather.h"
#include "places.h"
#include "results.h"
#include "side_python.h"

#ifdef HAVE_X86
#include <cpuid.h>
#endif

static const Kernels *LEVELS[4];
static int level_count;
static const Kernels *current;

#ifdef HAVE_X86
/* Not every compiler knows this one by name. */
static int has_f16c(void)
{
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c >> 29 & 1;
}
#endif

static void find_levels(void)
{
    LEVELS[level_count++] = &KERNELS_BASELINE;
#ifdef HAVE_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
        LEVELS[level_count++] = &KERNELS_AVX2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
            LEVELS[level_count++] = &KERNELS_AVX512;
    }
#endif
    current = LEVELS[level_count - 1];
}

typedef struct {
    PyObject_HEAD
    Batch batch;
    int busy; /* measured without the interpreter's lock */
    int fed;
} BatchObject;

static int unpack(Batch *b, const Packed *packed, Py_ssize_t count)
{
    b->items = calloc((size_t)count + 1, sizeof *b->items);
    if (!b->items) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Packed p;
        memcpy(&p, packed + i, sizeof p);
        if (p.ref_type < 0 || p.ref_type >= TYPES || p.cand_type < 0 || p.cand_type >= TYPES || p.count < 0) {
            PyErr_SetString(PyExc_ValueError, "no such pair");
            return 0;
        }
        b->items[i].ref = (Side){(Type)p.ref_type, p.ref_fd, p.ref_place, 0, 0};
        b->items[i].cand = (Side){(Type)p.cand_type, p.cand_fd, p.cand_place, 0, 0};
        b->items[i].count = p.count;
        b->items[i].tolerance = (Tolerance){p.atol, p.rtol};
    }
    return 1;
}

static PyObject *batch_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    Py_buffer packed;
    int threads, fed;
    if (!PyArg_ParseTuple(args, "y*ip", &packed, &threads, &fed))
        return NULL;
    BatchObject *self = (BatchObject *)type->tp_alloc(type, 0);
    if (self) {
        Py_ssize_t count = packed.len / (Py_ssize_t)sizeof(Packed);
        self->fed = fed;
        if (!unpack(&self->batch, packed.buf, count)) {
            Py_CLEAR(self);
        } else if (!batch_start(&self->batch, (size_t)count, threads, current, fed)) {
            PyErr_NoMemory();
            Py_CLEAR(self);
        }
    }
    PyBuffer_Release(&packed);
    return (PyObject *)self;
}

static void batch_dealloc(BatchObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    batch_stop(&self->batch);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static int enter(BatchObject *self)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the batch is being measured by another thread");
        return 0;
    }
    return 1;
}

static int is_lost(const BatchObject *self)
{
    if (!batch_is_lost(&self->batch))
        return 0;
    PyErr_SetString(PyExc_ChildProcessError, "the process was forked while tensors were being measured");
    return 1;
}

PyDoc_STRVAR(step_doc, "step(elements) -> int or None: measure on; how many were new, or None when all is done.");

static PyObject *batch_step_method(BatchObject *self, PyObject *args)
{
    long long elements, seen = 0;
    size_t end;
    if (!PyArg_ParseTuple(args, "L", &elements) || !enter(self))
        return NULL;
    self->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    end = batch_end_of_step(&self->batch, elements);
    if (end)
        seen = batch_step(&self->batch, end);
    Py_END_ALLOW_THREADS
    self->busy = 0;
    if (self->batch.no_memory)
        return PyErr_NoMemory();
    if (!end)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(seen);
}

PyDoc_STRVAR(begin_doc, "begin(after) -> bool: measure all in a thread of its own, unless there is none to be had; not "
                        "before another batch is done that was begun, if there is one.");

static PyObject *batch_begin_method(BatchObject *self, PyObject *after)
{
    if (!enter(self))
        return NULL;
    if (after != Py_None && (!Py_IS_TYPE(after, Py_TYPE(self)) || !((BatchObject *)after)->batch.driven))
        return PyErr_Format(PyExc_ValueError, "only a batch that was begun can be waited for");
    if (after != Py_None && is_lost((BatchObject *)after))
        return NULL;
    self->busy = batch_begin(&self->batch, after == Py_None ? NULL : &((BatchObject *)after)->batch);
    return PyBool_FromLong(self->busy);
}

PyDoc_STRVAR(wait_doc, "wait() -> int: wait until all that was begun is measured; how many elements that were.");

static PyObject *batch_wait_method(BatchObject *self, PyObject *Py_UNUSED(args))
{
    long long seen;
    if (!self->batch.driven)
        return PyErr_Format(PyExc_RuntimeError, "nothing was begun");
    if (is_lost(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    seen = batch_wait(&self->batch);
    Py_END_ALLOW_THREADS
    self->busy = 0;
    return self->batch.no_memory ? PyErr_NoMemory() : PyLong_FromLongLong(seen);
}

PyDoc_STRVAR(pending_doc, "pending(elements) -> (start, stop) or None: what the next step of one fed pair needs.");

static PyObject *batch_pending(BatchObject *self, PyObject *args)
{
    long long elements;
    if (!PyArg_ParseTuple(args, "L", &elements) || !enter(self))
        return NULL;
    size_t end = batch_end_of_step(&self->batch, elements);
    if (self->batch.no_memory)
        return PyErr_NoMemory();
    if (!end)
        Py_RETURN_NONE;
    const Task *first = &self->batch.tasks[self->batch.next], *last = &self->batch.tasks[end - 1];
    long long stop = self->batch.round == ROUND_PICK ? 0 : (long long)(last->start + (int64_t)last->n);
    return Py_BuildValue("LL", self->batch.round == ROUND_PICK ? 0LL : (long long)first->start, stop);
}

/* Point a side at a piece of it that was read into memory. */
static int feed_side(Side *side, PyObject *buffer, Py_buffer *view, int64_t start, int64_t stop)
{
    view->obj = NULL;
    if (buffer == Py_None)
        return 1;
    if (PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE) < 0)
        return 0;
    int64_t size = TYPE_SIZE[side->type];
    if (view->len < (stop - start) * size) {
        PyErr_SetString(PyExc_ValueError, "fewer elements than the step needs");
        return 0;
    }
    side->fd = -1;
    side->place = (int64_t)(intptr_t)view->buf - start * size;
    return 1;
}

PyDoc_STRVAR(feed_doc, "feed(elements, reference, candidate) -> int: measure what is pending, from these buffers.");

static PyObject *batch_feed(BatchObject *self, PyObject *args)
{
    long long elements;
    PyObject *buffers[2], *result = NULL;
    Py_buffer view[2] = {{0}, {0}};
    if (!PyArg_ParseTuple(args, "LOO", &elements, &buffers[0], &buffers[1]) || !enter(self))
        return NULL;
    Batch *b = &self->batch;
    size_t end = batch_end_of_step(b, elements);
    if (!self->fed || b->count != 1 || !end) {
        PyErr_SetString(PyExc_ValueError, "nothing is pending");
        return NULL;
    }
    const Task *last = &b->tasks[end - 1];
    int64_t start = b->tasks[b->next].start, stop = b->round == ROUND_PICK ? start : last->start + (int64_t)last->n;
    if (feed_side(&b->items[0].ref, buffers[0], &view[0], start, stop) &&
        feed_side(&b->items[0].cand, buffers[1], &view[1], start, stop)) {
        long long seen;
        self->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        seen = batch_step(b, end);
        Py_END_ALLOW_THREADS
        self->busy = 0;
        result = b->no_memory ? PyErr_NoMemory() : PyLong_FromLongLong(seen);
    }
    for (int i = 0; i < 2; i++)
        if (view[i].obj)
            PyBuffer_Release(&view[i]);
    return result;
}

PyDoc_STRVAR(results_doc, "results(class, shapes) -> list: for each pair an instance of metrics.Metrics, made without "
                          "its __init__; None where squares left the range of float64, (errno, side) where reading failed.");

static PyObject *batch_results(BatchObject *self, PyObject *args)
{
    PyObject *class, *shapes;
    if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &class, &PyList_Type, &shapes) || !enter(self))
        return NULL;
    Py_ssize_t count = (Py_ssize_t)self->batch.count;
    Fields fields;
    if (!fields_of((PyTypeObject *)class, &fields))
        return NULL;
    if (PyList_GET_SIZE(shapes) != count)
        return PyErr_Format(PyExc_ValueError, "%zd shapes for %zd pairs", PyList_GET_SIZE(shapes), count);
    PyObject *out = PyList_New(count);
    int collects = PyGC_Disable(); /* no result holds another: there is nothing to find on the way */
    for (Py_ssize_t i = 0; out && i < count; i++) {
        PyObject *shape = PyList_GET_ITEM(shapes, i);
        PyObject *made = PyTuple_Check(shape) ? result_of(&self->batch.items[i], &fields, shape) : NULL;
        if (!made) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "a shape is a tuple");
            Py_CLEAR(out);
            break;
        }
        PyList_SET_ITEM(out, i, made);
    }
    if (collects)
        PyGC_Enable();
    return out;
}

static PyMethodDef batch_methods[] = {
    {"step", (PyCFunction)(void (*)(void))batch_step_method, METH_VARARGS, step_doc},
    {"begin", (PyCFunction)batch_begin_method, METH_O, begin_doc},
    {"wait", (PyCFunction)batch_wait_method, METH_NOARGS, wait_doc},
    {"pending", (PyCFunction)(void (*)(void))batch_pending, METH_VARARGS, pending_doc},
    {"feed", (PyCFunction)(void (*)(void))batch_feed, METH_VARARGS, feed_doc},
    {"results", (PyCFunction)(void (*)(void))batch_results, METH_VARARGS, results_doc},
    {0},
};

static PyType_Slot batch_slots[] = {
    {Py_tp_new, (void *)batch_new},
    {Py_tp_dealloc, (void *)batch_dealloc},
    {Py_tp_methods, batch_methods},
    {Py_tp_doc, "Batch(packed, threads, fed): pairs that are measured in steps."},
    {0, NULL},
};

static PyType_Spec batch_spec = {"nndiff.stats._native.Batch", sizeof(BatchObject), 0, Py_TPFLAGS_DEFAULT, batch_slots};

PyDoc_STRVAR(address_doc, "address(buffer, size) -> int: where its bytes are, or -1 where they are not these bytes in a row.");

static PyObject *address(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *object;
    Py_ssize_t size;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "On", &object, &size))
        return NULL;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return PyLong_FromLong(-1);
    }
    long long place = view.len == size ? (long long)(intptr_t)view.buf : -1;
    PyBuffer_Release(&view);
    return PyLong_FromLongLong(place);
}

PyDoc_STRVAR(levels_doc, "levels() -> tuple[str, ...]: the vector widths this machine has, narrowest first.");

static PyObject *levels(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args))
{
    PyObject *out = PyTuple_New(level_count);
    for (int i = 0; out && i < level_count; i++) {
        PyObject *name = PyUnicode_FromString(LEVELS[i]->name);
        if (!name)
            Py_CLEAR(out);
        else
            PyTuple_SET_ITEM(out, i, name);
    }
    return out;
}

PyDoc_STRVAR(level_doc, "level() -> str: the vector width in use.");

static PyObject *level(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args))
{
    return PyUnicode_FromString(current->name);
}

PyDoc_STRVAR(use_doc, "use(level): take another vector width for the batches made from now on.");

static PyObject *use(PyObject *Py_UNUSED(self), PyObject *args)
{
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    for (int i = 0; i < level_count; i++) {
        if (strcmp(LEVELS[i]->name, name) == 0) {
            current = LEVELS[i];
            Py_RETURN_NONE;
        }
    }
    return PyErr_Format(PyExc_ValueError, "this machine has no vector width %s", name);
}

PyDoc_STRVAR(float8_doc, "set_float8(number, values): set the 256 floats of a float8 kind.");

static PyObject *set_float8(PyObject *Py_UNUSED(self), PyObject *args)
{
    int number;
    Py_buffer values;
    if (!PyArg_ParseTuple(args, "iy*", &number, &values))
        return NULL;
    int fits = number >= 0 && number < 5 && values.len == sizeof F8_TABLE[0];
    if (fits)
        memcpy(F8_TABLE[number], values.buf, sizeof F8_TABLE[0]);
    PyBuffer_Release(&values);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "float8 kind %d has 256 floats", number);
    Py_RETURN_NONE;
}

static PyObject *measure(PyObject *Py_UNUSED(self), PyObject *args)
{
    return side_measure(current, args);
}

static PyObject *hashes(PyObject *Py_UNUSED(self), PyObject *args)
{
    return side_hashes(current, args);
}

static PyObject *sketch(PyObject *Py_UNUSED(self), PyObject *args)
{
    return side_sketch(current, args);
}

static PyObject *hash_rows(PyObject *Py_UNUSED(self), PyObject *args)
{
    return side_hash_rows(current, args);
}

static PyObject *content(PyObject *Py_UNUSED(self), PyObject *args)
{
    return side_content(current, args);
}

static PyMethodDef module_methods[] = {
    {"measure", measure, METH_VARARGS, side_measure_doc},
    {"hashes", hashes, METH_VARARGS, side_hashes_doc},
    {"sketch", sketch, METH_VARARGS, side_sketch_doc},
    {"hash_rows", hash_rows, METH_VARARGS, side_hash_rows_doc},
    {"content", content, METH_VARARGS, side_content_doc},
    {"same", side_same, METH_VARARGS, side_same_doc},
    {"places", places, METH_VARARGS, places_doc},
    {"ranks", ranks, METH_VARARGS, ranks_doc},
    {"address", address, METH_VARARGS, address_doc},
    {"know", know, METH_VARARGS, know_doc},
    {"gather", gather, METH_VARARGS, gather_doc},
    {"levels", levels, METH_NOARGS, levels_doc},
    {"level", level, METH_NOARGS, level_doc},
    {"use", use, METH_VARARGS, use_doc},
    {"set_float8", set_float8, METH_VARARGS, float8_doc},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "nndiff.stats._native", "The fused statistics kernel.", -1, module_methods, 0, 0, 0, 0,
};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type && PyModule_AddObject(module, name, type) == 0)
        return 1;
    Py_XDECREF(type);
    return 0;
}

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!level_count)
        find_levels();
    if (module && !add_type(module, "Batch", &batch_spec))
        Py_CLEAR(module);
    return module;
}
