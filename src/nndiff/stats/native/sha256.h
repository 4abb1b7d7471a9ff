/* SHA-256 (FIPS 180-4) by the instructions some processors have for it; where there are none, hashlib is as good. */
#ifndef NNDIFF_SHA256_H
#define NNDIFF_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BLOCK = 64, SHA256_SIZE = 32 };

typedef struct {
    uint32_t word[8]; /* in the order of the instructions: f e b a, h g d c */
} Sha256;

int sha256_here(void); /* only where this is true may the others be called */
void sha256_start(Sha256 *);
void sha256_blocks(Sha256 *, const uint8_t *, size_t blocks);
/* The same for two messages at a time: one alone waits for its own rounds half of the time. */
void sha256_two(Sha256 *, const uint8_t *, Sha256 *, const uint8_t *, size_t blocks);
/* Take the last bytes, fewer than a block, of a message of `total` bytes. */
void sha256_end(Sha256 *, const uint8_t *rest, uint64_t total, uint8_t out[SHA256_SIZE]);

#endif
