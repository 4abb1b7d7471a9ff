/* What a tensor holds, whatever the order, shape and dtype. */
#ifndef NNDIFF_CONTENT_H
#define NNDIFF_CONTENT_H

#include "native.h"

typedef enum {
    ROUND_NOTHING, ROUND_F32, ROUND_F16, ROUND_BF16, ROUND_E4M3FN, ROUND_E5M2,
    CONTENT_ROUNDINGS,
} Rounding;

typedef struct {
    const Kernels *kernels;
    const uint8_t *bytes;
    size_t count;
    Type type;
    Rounding rounding; /* what values are rounded to before they are hashed */
    uint64_t at;       /* place of the first element in the tensor */
} ContentJob;

/* Sum the hashes of all elements on so many threads; return 0 without memory. */
int content_sum(const ContentJob *, int threads, ContentSums *);

#endif
