/* XXH3 of 128 bits, as its specification has it for more than 240 bytes, without a seed: at the speed of memory.
   Not for secrets: whoever can write a recording can write any digest into it. */
#ifndef NNDIFF_XXH3_H
#define NNDIFF_XXH3_H

#include "native.h"

enum { XXH3_SIZE = 16, XXH3_LEAST = 241, XXH3_SECRET = 192 };

extern const uint8_t XXH3_KEY[XXH3_SECRET];

typedef struct {
    const Kernels *kernels;
    const uint8_t *bytes;
    size_t size, blocks; /* bytes, and the blocks that are scrambled: all but the last */
    uint64_t lane[XXH3_LANES];
} Xxh3;

/* Begin with bytes that are all there, at least XXH3_LEAST of them. */
void xxh3_start(Xxh3 *, const Kernels *, const uint8_t *bytes, size_t size);
/* Take in what lies from one place to another; both multiples of a block, but for the end. */
void xxh3_step(Xxh3 *, size_t from, size_t to);
void xxh3_end(Xxh3 *, uint8_t out[XXH3_SIZE]);

#endif
