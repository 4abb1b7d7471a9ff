/* The functions of the module that look at one tensor. */
#include "side_python.h"

#include "content.h"
#include "many.h"

const char side_measure_doc[] =
    "measure(buffer, type, threads) -> (hashes, moments): the hash of each part of 262,144 bytes, in a row; count of finite "
    "and of other elements, mean, centred squares, squares, least and largest, or None where the type is -1 or squares "
    "overflow.";

static PyObject *moments_of(const SidePart *all)
{
    const Moments *m = &all->moments;
    if (all->overflow)
        Py_RETURN_NONE;
    return Py_BuildValue("LLddddd", (long long)m->n, (long long)all->bad, m->mean.high, m->m2, all->squares, m->low, m->high);
}

static PyObject *hashes_of(const SidePart *parts, size_t count)
{
    PyObject *out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * XXH3_SIZE));
    for (size_t i = 0; out && i < count; i++)
        memcpy(PyBytes_AS_STRING(out) + i * XXH3_SIZE, parts[i].hash, XXH3_SIZE);
    return out;
}

static SidePart *look(const SideJob *job, int threads)
{
    SidePart *parts;
    Py_BEGIN_ALLOW_THREADS
    parts = side_look(job, threads);
    Py_END_ALLOW_THREADS
    if (!parts)
        PyErr_NoMemory();
    return parts;
}

PyObject *side_measure(const Kernels *kernels, PyObject *args)
{
    Py_buffer view;
    int type, threads;
    PyObject *out = NULL;
    if (!PyArg_ParseTuple(args, "y*ii", &view, &type, &threads))
        return NULL;
    SideJob job = {kernels, view.buf, (size_t)view.len, type >= 0, type >= 0 ? (Type)type : TYPE_U8};
    if (type >= (int)TYPES || view.len % TYPE_SIZE[job.type]) {
        PyErr_SetString(PyExc_ValueError, "no such elements");
        PyBuffer_Release(&view);
        return NULL;
    }
    SidePart *parts = look(&job, threads);
    PyBuffer_Release(&view);
    if (!parts)
        return NULL;
    size_t count = side_parts(job.size);
    SidePart all = side_merge(parts, count);
    PyObject *hashes = hashes_of(parts, count), *moments = job.with_stats ? moments_of(&all) : Py_NewRef(Py_None);
    if (hashes && moments)
        out = PyTuple_Pack(2, hashes, moments);
    Py_XDECREF(hashes);
    Py_XDECREF(moments);
    free(parts);
    return out;
}

const char side_hashes_doc[] = "hashes(address, size, threads) -> bytes: the hashes that measure gives for these bytes.";

PyObject *side_hashes(const Kernels *kernels, PyObject *args)
{
    long long address, size;
    int threads;
    if (!PyArg_ParseTuple(args, "LLi", &address, &size, &threads))
        return NULL;
    SideJob job = {kernels, (const uint8_t *)(intptr_t)address, size > 0 ? (size_t)size : 0, 0, TYPE_U8};
    SidePart *parts = look(&job, threads);
    PyObject *out = parts ? hashes_of(parts, side_parts(job.size)) : NULL;
    free(parts);
    return out;
}

const char side_same_doc[] = "same(address, address, size) -> bool: tell whether the bytes at both places are the same.";

PyObject *side_same(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long one, other, size;
    int same = 1;
    if (!PyArg_ParseTuple(args, "LLL", &one, &other, &size))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (size > 0)
        same = memcmp((const void *)(intptr_t)one, (const void *)(intptr_t)other, (size_t)size) == 0;
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(same);
}

const char side_sketch_doc[] =
    "sketch(tensors, seed, threads, hashes, moments, rows): look at many tensors. Each is five int64 (address, elements, "
    "type, numbers in its row, where the row begins). Fill the buffers: the hashes of all parts, of each tensor eight float64 (those of measure, "
    "and whether squares overflow), and all rows as float32.";

typedef struct {
    int64_t address, count, type, width, row;
} PackedTensor;

/* Tell whether a tensor can be looked at, and has a row that is allowed and fits among all numbers. */
static int is_possible(const PackedTensor *p, int64_t numbers)
{
    return p->type >= 0 && p->type < TYPES && p->count >= 0 && p->count <= PTRDIFF_MAX / 8 && p->width >= 0 &&
           p->width <= MANY_WIDEST && p->width <= p->count && (p->width == p->count || (p->width & (p->width - 1)) == 0) &&
           p->row >= 0 && p->row <= numbers - p->width;
}

/* Return how many parts tensors have, or -1 where one is impossible. */
static int64_t fill_tensors(const Kernels *kernels, const char *packed, size_t count, const Py_buffer *rows, ManyTensor *tensors)
{
    int64_t parts = 0;
    for (size_t i = 0; i < count; i++) {
        PackedTensor p;
        memcpy(&p, packed + i * sizeof p, sizeof p);
        if (!is_possible(&p, rows->len / (int64_t)sizeof(float)))
            return -1;
        const size_t size = (size_t)p.count * TYPE_SIZE[p.type];
        tensors[i].job = (SideJob){kernels, (const uint8_t *)(intptr_t)p.address, size, 1, (Type)p.type};
        tensors[i].count = (size_t)p.count;
        tensors[i].width = (size_t)p.width;
        tensors[i].row = (float *)rows->buf + p.row;
        parts += (int64_t)side_parts(size);
    }
    return parts;
}

static void write_results(const ManyTensor *tensors, size_t count, char *hashes, char *moments)
{
    for (size_t i = 0; i < count; i++) {
        const Moments *m = &tensors[i].all.moments;
        const double row[8] = {m->n,    (double)tensors[i].all.bad, m->mean.high, m->m2, tensors[i].all.squares,
                               m->low, m->high, tensors[i].all.overflow};
        memcpy(moments + i * sizeof row, row, sizeof row);
        for (size_t part = 0; part < side_parts(tensors[i].job.size); part++, hashes += XXH3_SIZE)
            memcpy(hashes, tensors[i].parts[part].hash, XXH3_SIZE);
    }
}

/* Look at tensors that fit the buffers; tell whether there was memory for it. */
static int look_at_many(ManyTensor *tensors, size_t count, size_t parts, uint64_t seed, int threads, const Py_buffer out[2])
{
    SidePart *all_parts = calloc(parts + 1, sizeof *all_parts);
    int done = 0;
    if (all_parts) {
        SidePart *next_part = all_parts;
        for (size_t i = 0; i < count; i++) {
            tensors[i].parts = next_part;
            next_part += side_parts(tensors[i].job.size);
        }
        Py_BEGIN_ALLOW_THREADS
        done = many_look(tensors, count, seed, threads);
        if (done)
            write_results(tensors, count, out[0].buf, out[1].buf);
        Py_END_ALLOW_THREADS
    }
    free(all_parts);
    return done;
}

PyObject *side_sketch(const Kernels *kernels, PyObject *args)
{
    Py_buffer packed, out[3];
    unsigned long long seed;
    int threads;
    int64_t parts = 0;
    if (!PyArg_ParseTuple(args, "y*Kiw*w*w*", &packed, &seed, &threads, &out[0], &out[1], &out[2]))
        return NULL;
    const size_t count = (size_t)packed.len / sizeof(PackedTensor);
    ManyTensor *tensors = calloc(count + 1, sizeof *tensors);
    if (!tensors)
        PyErr_NoMemory();
    else if ((parts = fill_tensors(kernels, packed.buf, count, &out[2], tensors)) < 0)
        PyErr_SetString(PyExc_ValueError, "no such elements");
    else if (out[0].len != parts * XXH3_SIZE || (size_t)out[1].len != count * 8 * sizeof(double))
        PyErr_SetString(PyExc_ValueError, "a buffer has not the size of what belongs into it");
    else if (!look_at_many(tensors, count, (size_t)parts, seed, threads, out))
        PyErr_NoMemory();
    free(tensors);
    PyBuffer_Release(&packed);
    for (int i = 0; i < 3; i++)
        PyBuffer_Release(&out[i]);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

const char side_hash_rows_doc[] =
    "hash_rows(buffer, rows, threads) -> bytes: a hash of eight bytes for each of so many rows of equal length.";

PyObject *side_hash_rows(const Kernels *kernels, PyObject *args)
{
    Py_buffer view;
    Py_ssize_t rows;
    int threads, done = 0;
    if (!PyArg_ParseTuple(args, "y*ni", &view, &rows, &threads))
        return NULL;
    PyObject *out = NULL;
    if (rows < 0 || (rows == 0 ? view.len != 0 : view.len % rows != 0))
        PyErr_SetString(PyExc_ValueError, "no such rows");
    else
        out = PyBytes_FromStringAndSize(NULL, rows * (Py_ssize_t)sizeof(uint64_t));
    if (out) {
        uint8_t *hashes = (uint8_t *)PyBytes_AS_STRING(out);
        Py_BEGIN_ALLOW_THREADS
        done = many_hash_rows(kernels, view.buf, (size_t)rows, rows ? (size_t)(view.len / rows) : 0, hashes, threads);
        Py_END_ALLOW_THREADS
        if (!done) {
            Py_CLEAR(out);
            PyErr_NoMemory();
        }
    }
    PyBuffer_Release(&view);
    return out;
}

const char side_content_doc[] =
    "content(buffer, type, rounding, at, threads) -> (values, placed): the sums of content.h; at: the place of the first.";

PyObject *side_content(const Kernels *kernels, PyObject *args)
{
    Py_buffer view;
    int type, rounding, threads, done;
    unsigned long long at;
    if (!PyArg_ParseTuple(args, "y*iiKi", &view, &type, &rounding, &at, &threads))
        return NULL;
    if (type < 0 || type >= (int)TYPES || rounding < 0 || rounding >= CONTENT_ROUNDINGS || view.len % TYPE_SIZE[type]) {
        PyErr_SetString(PyExc_ValueError, "no such elements");
        PyBuffer_Release(&view);
        return NULL;
    }
    const ContentJob job = {kernels, view.buf, (size_t)view.len / TYPE_SIZE[type], (Type)type, (Rounding)rounding, at};
    ContentSums sums = {0, 0};
    Py_BEGIN_ALLOW_THREADS
    done = content_sum(&job, threads, &sums);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return done ? Py_BuildValue("KK", (unsigned long long)sums.values, (unsigned long long)sums.placed) : PyErr_NoMemory();
}
